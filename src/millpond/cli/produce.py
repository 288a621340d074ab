"""`millpond produce`: writes lines as records."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from millpond.admin.library import reason
from millpond.cli.access import Access, cluster_options, find_partitions
from millpond.cli.completion.names import TopicName
from millpond.cli.errors import Failed, cause
from millpond.cli.json_lines import Headers, NotARecord, Outgoing, load
from millpond.cli.options import pairs
from millpond.cli.text import counted
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

MESSAGE_SECONDS_MAX: Final = 30
PROGRESS_SECONDS: Final = 0.2
CHECK_RECORDS: Final = 1000
"""Records between two checks of the clock and of failed deliveries."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command("produce")
@click.argument("topic", type=TopicName())
@click.option("-f", "--file", metavar="FILE", help="Read this file instead of standard input.")
@click.option("-k", "--key-separator", metavar="SEP", help=r"The text before SEP is the key; \t is a tab.")
@click.option("-H", "--headers", metavar="NAME=VALUE", multiple=True, help="A header for every record; repeatable.")
@click.option("-j", "--json-lines", is_flag=True, help="Each line is a record as JSON, with any of the fields below.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option(
    "-p",
    "--partition",
    metavar="N",
    type=click.IntRange(0),
    help="All to this partition; otherwise by key, or spread.",
)
@click.option("--rate", metavar="N", type=click.FloatRange(0, min_open=True), help="At most N records per second.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@cluster_options
def command(
    topic: str,
    file: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    json_lines: bool,
    acks: str,
    compression: str,
    partition: int | None,
    rate: float | None,
    create: bool,
    access: Access,
) -> int:
    """Write the lines of a file or of standard input to TOPIC, one record each.

    With --json-lines a line has the fields value, key, headers, partition and timestamp (milliseconds), all optional;
    bytes that are not text are {"$base64": "…"}. It is the format of `millpond consume --json-lines`.

    The exit code is 0 only if every record was acknowledged.

    \b
    Examples:
      echo hello | millpond produce orders --create
      millpond produce orders --file orders.txt --key-separator : --compression zstd
      echo '{"key": "tea", "value": {"cups": 2}}' | millpond produce orders --json-lines
      millpond consume orders --until-end --json-lines | millpond produce copy --json-lines
    """
    if json_lines and key_separator is not None:
        raise click.UsageError("--key-separator is for plain lines: with --json-lines the key is a field.")
    extra_headers: Headers = [(name, value.encode()) for name, value in pairs(headers, "--headers").items()]
    if create:
        _ensure(access, topic)
    producer = _producer(access, acks, compression)
    partitions = find_partitions(producer, topic, " To create it, add --create.")
    sender = Sender(producer, topic, len(partitions), rate)
    sender.check_partition(partition)
    with _source(file) as source:
        records = _json_records(source) if json_lines else _plain_records(source, _separator(key_separator))
        with _ending_on_signals():
            return sender.run(_completed(record, extra_headers, partition) for record in records)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """On any stop signal, the lines read so far are sent and counted."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ensure(access: Access, topic: str) -> None:
    from millpond.remote.topics import BY_DEFAULT, TopicExists, create_topic

    with access.open() as cluster:
        if topic not in cluster.topics([topic]):
            with suppress(TopicExists):  # Another client has just created it.
                create_topic(cluster, topic, BY_DEFAULT, BY_DEFAULT, {})
                click.echo(f"Created topic {topic}.", err=True)


def _producer(access: Access, acks: str, compression: str) -> Producer:
    return access.producer(
        {
            "acks": acks,
            "compression.type": compression,
            # An idempotent producer: retries neither duplicate nor reorder.
            "enable.idempotence": acks == "all",
            "message.timeout.ms": MESSAGE_SECONDS_MAX * 1000,
            "linger.ms": 5,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 200_000,
        }
    )


def _completed(record: Outgoing, headers: Headers, partition: int | None) -> Outgoing:
    """Completes a record with the options for all records; its own fields take precedence."""
    if not headers and partition is None:
        return record
    return record._replace(
        headers=[*(record.headers or ()), *headers],
        partition=partition if record.partition is None else record.partition,
    )


# Reading.


def _source(file: str | None) -> BinaryIO:
    if file is None or file == "-":
        if sys.stdin.isatty():
            click.echo("One record per line; Ctrl-D ends the input.", err=True)
        return sys.stdin.buffer
    try:
        return open(file, "rb")
    except OSError as error:
        raise Failed(f"{file} cannot be read: {cause(error)}.") from None


def _separator(text: str | None) -> bytes | None:
    if text == "":
        raise click.UsageError("--key-separator cannot be empty.")
    return text.replace("\\t", "\t").encode() if text is not None else None


def _plain_records(lines: Iterable[bytes], separator: bytes | None) -> Iterator[Outgoing]:
    for line in lines:
        value = line.removesuffix(b"\n")
        if separator is not None and separator in value:
            key, _, value = value.partition(separator)
            yield Outgoing(value, key)
        else:
            yield Outgoing(value)


def _json_records(lines: Iterable[bytes]) -> Iterator[Outgoing]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield load(line)
            except NotARecord as fault:
                raise Failed(f"Line {number} is not a record: {fault}.") from None


# Sending.


class Sender:
    """Sends records, counts them, and knows whether all of them arrived."""

    def __init__(self, producer: Producer, topic: str, partition_count: int, rate: float | None) -> None:
        self._producer = producer
        self._topic = topic
        self._partition_count = partition_count
        self._rate = rate
        self._started = time.monotonic()
        self._shown = self._started
        self.sent = 0
        self.sent_bytes = 0
        self.failed = 0
        self.first_reason = ""

    def check_partition(self, partition: int | None) -> None:
        if partition is not None and partition >= self._partition_count:
            raise Failed(f"{self._topic} has no partition {partition}: it has 0 to {self._partition_count - 1}.")

    def run(self, records: Iterable[Outgoing]) -> int:
        """Sends all, waits for the last acknowledgement and prints the result; returns the exit code."""
        broken: Failed | None = None
        try:
            for record in records:
                self.check_partition(record.partition)
                self._send(record)
        except KeyboardInterrupt:
            pass
        except Failed as fault:
            broken = fault
        try:
            self._finish()
        except KeyboardInterrupt:
            # The signal came between the last record and the wait for it.
            self._finish()
        self._summarise()
        if broken is not None:
            raise broken
        if self.failed:
            raise Failed(f"{self.failed:,} of {self.sent:,} records were not acknowledged: {self.first_reason}")
        return 0

    def _send(self, record: Outgoing) -> None:
        self._pace()
        while True:
            try:
                self._hand_over(record)
                break
            except BufferError:
                # The queue is full: acknowledged records free space.
                self._producer.poll(0.1)
                self._progress()
        self.sent += 1
        if self.sent % CHECK_RECORDS == 0:
            self._producer.poll(0)
            self._progress()

    def _hand_over(self, record: Outgoing) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                partition=record.partition if record.partition is not None else -1,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers or ()),
                on_delivery=self._delivered,
            )
            self.sent_bytes += len(record.value or b"") + len(record.key or b"")
        except KafkaException as refusal:
            self._count_failure(refusal.args[0])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._count_failure(error)

    def _count_failure(self, error: KafkaError) -> None:
        self.failed += 1
        self.first_reason = self.first_reason or reason(error)

    def _pace(self) -> None:
        if self._rate is None:
            return
        due = self._started + self.sent / self._rate
        while (wait := due - time.monotonic()) > 0:
            self._producer.poll(min(wait, PROGRESS_SECONDS))
            self._progress()

    def _finish(self) -> None:
        try:
            while self._producer.flush(PROGRESS_SECONDS):
                self._progress()
        except KeyboardInterrupt:
            left = len(self._producer)
            self.failed += left
            self.first_reason = self.first_reason or "they were still in flight when you stopped."

    # Showing.

    def _progress(self) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and not sys.stdin.isatty() and now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            click.echo(f"\r\x1b[K{self._summary()}", err=True, nl=False)

    def _summarise(self) -> None:
        erase = "\r\x1b[K" if sys.stderr.isatty() else ""
        click.echo(f"{erase}{self._summary()}", err=True)

    def _summary(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-6)
        arrived = counted(self.sent - self.failed, "record")
        size = f"{self.sent_bytes / 1e6:,.1f} MB" if self.sent_bytes >= 100_000 else counted(self.sent_bytes, "byte")
        took = f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
        rate = f" ({self.sent / seconds:,.0f} a second)" if self.sent > 1 else ""
        return f"{arrived}, {size} in {took}{rate}"
