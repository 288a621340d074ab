"""`millpond consume`: prints the records of a topic, without a consumer group."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, get_args

import click

from millpond.cli.access import Access, cluster_options, find_partitions
from millpond.cli.completion.names import TopicName
from millpond.cli.errors import Failed, failed
from millpond.cli.json_lines import HEX_MARK, Headers, NotParsed, dump, parsed_json
from millpond.cli.options import option
from millpond.cli.stop import Stop, stop_on
from millpond.cli.text import counted, safe
from millpond.cli.times import now_ms, show_time
from millpond.wire.kernel.messages import read_headers

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

    from millpond.admin.offsets import Point

POLL_SECONDS: Final = 0.2
BATCH_RECORDS: Final = 2000
ONLY_THIS: Final = "Only this one; repeatable."

How = Literal["text", "json", "hex"]
"""How values are read."""

Formatter = Callable[["Message"], bytes]


@click.command("consume")
@click.argument("topic", type=TopicName())
@click.option("-p", "--partition", "indexes", metavar="N", type=click.IntRange(0), multiple=True, help=ONLY_THIS)
@option("--from", "point", meta="POINT", default="beginning", help="Where to begin.")
@click.option("-n", "--count", metavar="N", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--follow/--until-end", default=True, help="Wait for new records (the default), or stop at the end.")
@click.option("-j", "--json-lines", is_flag=True, help="Each record as a line of JSON, with all its fields.")
@click.option(
    "--parse", metavar="text|json|hex", type=click.Choice(get_args(How)), default="text", help="How values are read."
)
@click.option("-k", "--keys", is_flag=True, help="Show the key before the value.")
@click.option("-H", "--headers", is_flag=True, help="Show the headers before the value.")
@click.option("-t", "--timestamps", is_flag=True, help="Show partition, offset and time before the value.")
@cluster_options
def command(
    topic: str,
    indexes: tuple[int, ...],
    point: str,
    count: int | None,
    follow: bool,
    json_lines: bool,
    parse: How,
    keys: bool,
    headers: bool,
    timestamps: bool,
    access: Access,
) -> int:
    """Print the records of TOPIC, one a line, and wait for more until Ctrl-C.

    POINT is beginning, end, an offset (1200), a number of records before the end (-10), a time (2026-01-31T08:30,
    local unless it names a zone) or a time ago (5m, "1h30m ago"). Records of a partition are printed in order; there
    is no order between partitions.

    Fields before the value are separated by tabs. Bytes that are not UTF-8 are shown as \\xNN; with --json-lines they
    are {"$base64": "…"}, without loss.

    --parse json parses values as JSON: with --json-lines they are embedded, else each is printed on one line. A value
    that is not JSON is shown as text (with the reason as "unparsed" in a line of JSON), and the exit code is 1.
    --parse hex shows hexadecimal digits. To copy a topic, leave out --parse.

    \b
    Examples:
      millpond consume orders
      millpond consume orders --from -10 --until-end --keys
      millpond consume orders --from "5m ago" --json-lines --parse json | jq .value.total
      millpond consume orders --partition 2 --from 1200 --count 1 --headers
    """
    from confluent_kafka import TopicPartition as Assignment

    from millpond.admin.errors import unknown_partition
    from millpond.admin.offsets import bounds_of, resolve
    from millpond.base.ids import TopicPartition

    begin = point_of(point, now_ms())
    consumer = _consumer(access, follow)
    there = find_partitions(consumer, topic)
    partitions = [TopicPartition(topic, index) for index in sorted(set(indexes)) or there]
    # Two requests get all offsets; a consumer would ask for one partition at a time.
    with access.open() as cluster:
        for each in partitions:
            if each.partition not in there:
                raise unknown_partition(*each, len(there))
        bounds = bounds_of(cluster, partitions)
        starts = resolve(cluster, bounds, begin)
    values = Values(parse)
    show = _json_line(values) if json_lines else _plain_line(values, keys, headers, timestamps, sys.stdout.isatty())
    try:
        if not follow:
            starts = {each: start for each, start in starts.items() if start < bounds[each].end}
        consumer.assign([Assignment(*each, start) for each, start in starts.items()])
        ends = None if follow else {each.partition: bounds[each].end for each in starts}
        with stop_on(signal.SIGINT, signal.SIGTERM) as stop:
            Reader(consumer, show, count, ends).run(stop)
    finally:
        consumer.close()
    if values.failed:
        click.echo(
            f"{counted(values.failed, 'value')} could not be parsed as {parse}: {values.first_reason}.", err=True
        )
    return 1 if values.failed else 0


def _consumer(access: Access, follow: bool) -> Consumer:
    return access.consumer(
        {
            # librdkafka requires a group; it is never created, because nothing is subscribed or committed.
            "group.id": "millpond-consume",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": not follow,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 500 if follow else 100,
            "queued.min.messages": 50_000,
            # By default librdkafka pauses for a second when its queue is full.
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 64 * 1024,
        }
    )


def point_of(text: str, at_ms: int) -> Point:
    """The value of `--from`."""
    from millpond.admin.offsets import read_point

    try:
        return read_point(text, at_ms)
    except ValueError:
        raise click.UsageError(
            f"--from {text}: give beginning, end, an offset, -N, a time as 2026-01-31T08:30 or a span as 5m."
        ) from None


class Reader:
    """Prints records until there is a reason to stop."""

    def __init__(self, consumer: Consumer, show: Formatter, count: int | None, ends: dict[int, int] | None) -> None:
        self._consumer = consumer
        self._show = show
        self._left = count
        self._ends = ends
        """Remaining records by partition; None without --until-end."""
        self._out = sys.stdout.buffer

    def run(self, stop: Stop) -> None:
        """Checks for a stop between two batches: a short delay is better than a half-written line."""
        while not (stop.is_requested or self._left == 0 or self._ends == {}):
            first = self._consumer.poll(POLL_SECONDS)
            if first is None:
                continue
            messages = [first, *self._consumer.consume(BATCH_RECORDS, 0)]
            self._out.write(b"".join([self._show(message) for message in messages if self._takes(message)]))
            self._out.flush()

    def _takes(self, message: Message) -> bool:
        """Whether to print it; updates the position."""
        error = message.error()
        if error is not None:
            self._note(error, message.partition())
            return False
        if self._left == 0 or (self._ends is not None and not self._is_before_end(message)):
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def _is_before_end(self, message: Message) -> bool:
        assert self._ends is not None
        index, offset = message.partition(), message.offset()
        assert index is not None
        assert offset is not None
        end = self._ends.get(index)
        if end is None:
            return False
        if offset + 1 >= end:
            del self._ends[index]
        return offset < end

    def _note(self, error: KafkaError, partition: int | None) -> None:
        """The end of a partition may follow without a last record: control records and compacted ones are not
        delivered."""
        if error.name() == "_PARTITION_EOF":
            if self._ends is not None and partition is not None:
                self._ends.pop(partition, None)
        elif error.name() == "GROUP_AUTHORIZATION_FAILED":
            # librdkafka looks for the coordinator of the unused group, which needs a right that a reader may lack.
            return
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            raise Failed("The records were deleted while they were read: start again with --from beginning.")
        elif not error.retriable() and error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            raise failed("Reading stopped", error)


# Showing.


class Values:
    """Parses values, and counts those that fail."""

    def __init__(self, how: How) -> None:
        self._how = how
        self.failed = 0
        self.first_reason = ""

    def read(self, data: bytes | None) -> tuple[str | None, str | None]:
        """The value as JSON, or the reason why it is not."""
        if data is None or self._how == "text":
            return None, None
        if self._how == "hex":
            return f'{{"{HEX_MARK}":"{data.hex()}"}}', None
        try:
            return parsed_json(data), None
        except NotParsed as fault:
            self.failed += 1
            self.first_reason = self.first_reason or str(fault)
            return None, str(fault)

    def text(self, data: bytes | None, is_terminal: bool) -> str:
        if data is not None and self._how == "hex":
            return data.hex()
        parsed, _ = self.read(data)
        return shown(data if parsed is None else parsed.encode(), is_terminal)


def _json_line(values: Values) -> Formatter:
    def show(message: Message) -> bytes:
        data = _bytes(message.value())
        parsed, unparsed = values.read(data)
        return dump(
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            _bytes(message.key()),
            data,
            _headers(message),
            parsed=parsed,
            unparsed=unparsed,
        )

    return show


def _plain_line(values: Values, keys: bool, headers: bool, timestamps: bool, is_terminal: bool) -> Formatter:
    def text_of(message: Message) -> str:
        return values.text(_bytes(message.value()), is_terminal)

    def show(message: Message) -> bytes:
        parts = []
        if timestamps:
            parts.append(f"{message.partition()}:{message.offset()}\t{show_time(message.timestamp()[1])}")
        if keys:
            parts.append(shown(_bytes(message.key()), is_terminal))
        if headers:
            fields = (f"{name}={shown(value, is_terminal)}" for name, value in _headers(message))
            parts.append(",".join(fields) or "-")
        parts.append(text_of(message))
        return ("\t".join(parts) + "\n").encode()

    def value_only(message: Message) -> bytes:
        return (text_of(message) + "\n").encode()

    return show if keys or headers or timestamps else value_only


def shown(data: bytes | None, is_terminal: bool) -> str:
    """Bytes as text; anything else, and control characters, are escaped."""
    if data is None:
        return "(null)"
    text = data.decode("utf-8", "backslashreplace")
    return safe(text) if is_terminal else text


def _bytes(data: object) -> bytes | None:
    assert data is None or isinstance(data, bytes)
    return data


def _headers(message: Message) -> Headers:
    return [(name, _bytes(value)) for name, value in read_headers(message)]
