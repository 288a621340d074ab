"""Sends records from lines, for `produce` and `queue send`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from millpond.admin.library import reason
from millpond.cli.errors import Failed, cause
from millpond.cli.json_lines import NotARecord, Outgoing, load
from millpond.cli.text import counted
from millpond.node.signals import stop_signals

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

MESSAGE_SECONDS_MAX: Final = 30
PROGRESS_SECONDS: Final = 0.2
CHECK_RECORDS: Final = 1000
"""Records between two checks of the clock and of failed deliveries."""


def producer_settings(acks: str) -> dict[str, object]:
    return {
        "acks": acks,
        # An idempotent producer: retries neither duplicate nor reorder.
        "enable.idempotence": acks == "all",
        "message.timeout.ms": MESSAGE_SECONDS_MAX * 1000,
        "linger.ms": 5,
        "delivery.report.only.error": True,
        "queue.buffering.max.messages": 200_000,
    }


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """On any stop signal, the lines read so far are sent and counted."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Reading.


def open_source(file: str | None) -> BinaryIO:
    if file is None or file == "-":
        if sys.stdin.isatty():
            click.echo("One record per line; Ctrl-D ends the input.", err=True)
        return sys.stdin.buffer
    try:
        return open(file, "rb")
    except OSError as error:
        raise Failed(f"{file} cannot be read: {cause(error)}.") from None


def read_separator(text: str | None) -> bytes | None:
    if text == "":
        raise click.UsageError("--key-separator cannot be empty.")
    return text.replace("\\t", "\t").encode() if text is not None else None


def plain_records(lines: Iterable[bytes], separator: bytes | None) -> Iterator[Outgoing]:
    for line in lines:
        value = line.removesuffix(b"\n")
        if separator is not None and separator in value:
            key, _, value = value.partition(separator)
            yield Outgoing(value, key)
        else:
            yield Outgoing(value)


def json_records(lines: Iterable[bytes]) -> Iterator[Outgoing]:
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
