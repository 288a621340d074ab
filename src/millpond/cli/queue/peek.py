"""`millpond queue peek`: shows the next records of a queue without taking them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.consume import shown
from millpond.cli.json_lines import dump
from millpond.cli.queue.options import GROUP
from millpond.cli.terminal import print_table
from millpond.cli.text import NOTHING
from millpond.cli.times import now_ms, show_span

if TYPE_CHECKING:
    from millpond.admin.queues.jobs import Job

VALUE_SHOWN_MAX: Final = 80


@click.command("peek")
@click.argument("topic", type=TopicName())
@GROUP
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("-j", "--json-lines", is_flag=True, help="Each record as a line of JSON, with all its fields.")
@cluster_options
def peek_command(topic: str, group: str | None, limit: int, json_lines: bool, access: Access) -> None:
    """Show the oldest unfinished records of a queue, without taking them.

    A record is waiting, delayed, out (a member holds it) or archiving (its dead letter is being written). The state
    is unknown where the leader does not say it, as on Apache Kafka: then finished records may be among them.

    \b
    Examples:
      millpond queue peek emails
      millpond queue peek emails --group mailers --limit 100 --json-lines | jq .value
    """
    from millpond.admin.queues.find import find_queue_name
    from millpond.admin.queues.jobs import peek

    with access.open() as cluster:
        name = find_queue_name(cluster, topic, group)
        found = peek(cluster, name, limit)
    for job in found.jobs if json_lines else ():
        sys.stdout.buffer.write(_line(job))
    sys.stdout.flush()
    if found.jobs and not json_lines:
        print_table(
            ("State", "Value", "Key", "Partition", "Offset", "Age", "Deliveries", "Due in", "Priority"),
            [_row(each) for each in found.jobs],
            words=3,
        )
    if found.not_started:
        listed = ", ".join(map(str, found.not_started))
        click.echo(
            f"Group {name.group} has not read partition {listed} of {topic} yet. With share.auto.offset.reset=latest "
            "it skips what is there when it begins; earliest includes it.",
            err=True,
        )
    elif not found.jobs:
        click.echo("Nothing is unfinished.", err=True)
    if not found.is_whole:
        click.echo("Time or memory ran out: there may be more records, also older ones.", err=True)


def _line(job: Job) -> bytes:
    record = job.record
    return dump(
        job.partition,
        record.offset,
        record.timestamp,
        _bytes(record.key),
        _bytes(record.value),
        [(name, _bytes(value)) for name, value in record.headers],
        job={"state": job.state, "deliveries": job.deliveries},
    )


def _row(job: Job) -> list[str | int]:
    record, now = job.record, now_ms()
    return [
        job.state,
        _short(_bytes(record.value)),
        NOTHING if record.key is None else _short(_bytes(record.key)),
        job.partition,
        record.offset,
        NOTHING if record.timestamp < 0 else show_span(max(now - record.timestamp, 0)),
        NOTHING if job.deliveries is None else job.deliveries,
        NOTHING if job.deliver_at_ms is None or job.deliver_at_ms <= now else show_span(job.deliver_at_ms - now),
        NOTHING if job.priority is None else job.priority,
    ]


def _short(data: bytes | None) -> str:
    text = shown(None if data is None else data[: VALUE_SHOWN_MAX * 4], is_terminal=True).replace("\n", " ")
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[: VALUE_SHOWN_MAX - 1]}…"


def _bytes(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)
