"""`millpond queue send`: writes records that are jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import click

from millpond.base.names import PRIORITY_MAX
from millpond.cli.access import Access, cluster_options, find_partitions
from millpond.cli.completion.names import TopicName
from millpond.cli.json_lines import Headers, Outgoing
from millpond.cli.options import pairs, span
from millpond.cli.sender import (
    Sender,
    ending_on_signals,
    json_records,
    open_source,
    plain_records,
    producer_settings,
)


@click.command("send")
@click.argument("topic", type=TopicName())
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--delay", metavar="SPAN", help="Deliver them this much later: 30s, 5m, 2h.")
@click.option("--at", metavar="TIME", help="Deliver them at this time: 2026-01-31T08:30.")
@click.option("--priority", metavar="N", type=click.IntRange(0, PRIORITY_MAX), help="0 to 9; 4 without it.")
@click.option("-k", "--key", metavar="KEY", help="The key of every record without one.")
@click.option("-H", "--headers", metavar="NAME=VALUE", multiple=True, help="A header for every record; repeatable.")
@click.option("-j", "--json-lines", is_flag=True, help="Each line is a record as JSON; see `millpond help records`.")
@cluster_options
def send_command(
    topic: str,
    values: tuple[str, ...],
    delay: str | None,
    at: str | None,
    priority: int | None,
    key: str | None,
    headers: tuple[str, ...],
    json_lines: bool,
    access: Access,
) -> int:
    """Send each VALUE to TOPIC as a job; without values, each line of standard input.

    Delays hold for share groups; consumer groups read the record at once. Priorities hold for share groups with
    share.priority.enable, order by key for those with share.key.order.enable. A record that has a header queue.* of
    its own keeps it.

    The exit code is 0 only if every record was acknowledged.

    \b
    Examples:
      millpond queue send emails '{"to": "ada@example.org"}'
      millpond queue send reports monthly --at 2026-12-01T06:00 --priority 1
      millpond queue send orders --key customer-42 --delay 90s < lines.txt
      millpond queue peek emails --json-lines | millpond queue send copy --json-lines
    """
    if values and json_lines:
        raise click.UsageError("--json-lines is for standard input: leave out the values.")
    due = _due(delay, at, priority)
    extra_headers: Headers = [(name, value.encode()) for name, value in pairs(headers, "--headers").items()]
    own_key = None if key is None else key.encode()
    producer = access.producer(producer_settings("all"))
    partitions = find_partitions(producer, topic, f" To create it: millpond topic create {topic}")
    sender = Sender(producer, topic, len(partitions), None)
    if values:
        given = (Outgoing(each.encode()) for each in values)
        with ending_on_signals():
            return sender.run(_completed(given, own_key, extra_headers, due))
    with open_source(None) as source, ending_on_signals():
        records = json_records(source) if json_lines else plain_records(source, None)
        return sender.run(_completed(records, own_key, extra_headers, due))


def _due(delay: str | None, at: str | None, priority: int | None) -> Callable[[], Headers]:
    """Makes the headers of one record: a delay begins when it is sent."""
    from millpond.client.errors import ConfigError
    from millpond.client.queue_headers import queue_headers

    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at both say when to deliver: give one of them.")
    try:
        seconds = None if delay is None else span(delay) / 1000
    except ValueError as fault:
        raise click.UsageError(f"--delay {delay}: {fault}.") from None
    moment_ms = None if at is None else _moment_ms(at)

    def headers() -> Headers:
        return [(name, value) for name, value in queue_headers(seconds, moment_ms, priority)]

    try:
        headers()
    except ConfigError as fault:
        raise click.UsageError(f"{fault}.") from None
    return headers


def _moment_ms(text: str) -> int:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--at {text}: give a time as 2026-01-31T08:30; --delay takes a span such as 5m."
        ) from None


def _completed(
    records: Iterable[Outgoing], key: bytes | None, headers: Headers, due: Callable[[], Headers]
) -> Iterator[Outgoing]:
    """Each record with the options for all records; its own fields take precedence."""
    for record in records:
        own = list(record.headers or ())
        names = {name for name, _ in own}
        added = [*headers, *(each for each in due() if each[0] not in names)]
        yield record._replace(key=key if record.key is None else record.key, headers=[*own, *added])
