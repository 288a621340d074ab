"""`millpond queue receive`: takes records as a member of the share group."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.json_lines import dump
from millpond.cli.options import option, span
from millpond.cli.queue.options import GROUP
from millpond.cli.stop import Stop, stop_on
from millpond.cli.text import counted
from millpond.cli.times import show_span

if TYPE_CHECKING:
    from millpond.cli.queue.member import QueueMember
    from millpond.remote.shares.held_record import HeldRecord, Verdict

POLL_SECONDS: Final = 0.5
MORE_SECONDS: Final = 1.0
"""Once there was a record, how long to wait for the next."""


def _wait(text: str) -> int:
    wait_ms = span(text)
    if not wait_ms:
        raise ValueError(f"{text!r} is too short to join the group")
    return wait_ms


@click.command("receive")
@click.argument("topic", type=TopicName())
@GROUP
@click.option("-n", "--count", metavar="N", type=click.IntRange(1, 10_000), default=1, show_default=True)
@option("--wait", meta="SPAN", default="10s", read=_wait, help="How long to wait for the first record.")
@click.option("--ack", "verdict", flag_value="ACCEPT", default=True, help="Finish the records (the default).")
@click.option("--release", "verdict", flag_value="RELEASE", help="Give them back: they are delivered again.")
@click.option("--reject", "verdict", flag_value="REJECT", help="Give them up: they become dead letters, if kept.")
@cluster_options
def receive_command(topic: str, group: str | None, count: int, wait: int, verdict: str, access: Access) -> int:
    """Take up to N records of a queue and print each as a line of JSON.

    It joins the share group, takes what is available, and acknowledges once all is printed: if that fails, the
    records are delivered again. `deliveries` is how often the record has been delivered, this time included. A record
    that is released counts as delivered.

    A group that does not exist yet is created, and begins at the end of TOPIC unless share.auto.offset.reset says
    otherwise.

    \b
    Examples:
      millpond queue receive emails
      millpond queue receive emails --group mailers --count 100 --wait 1m | jq .value
      millpond queue receive emails --release
    """
    from millpond.cli.queue.member import WORDS, QueueMember
    from millpond.remote.shares.held_record import Verdict

    name = _group_of(access, topic, group)
    with stop_on(signal.SIGINT, signal.SIGTERM) as stop, QueueMember(access, name, topic) as member:
        received = _receive(member, count, wait / 1000, Verdict[verdict], stop)
    if stop.is_requested and received < count:
        return 130
    if not received:
        click.echo(f"No record came within {show_span(wait)}.", err=True)
    elif sys.stdout.isatty():
        click.echo(f"{counted(received, 'record')} {WORDS[Verdict[verdict]]}.", err=True)
    return 0


def _group_of(access: Access, topic: str, group: str | None) -> str:
    from millpond.admin.queues.find import find_queue_name
    from millpond.admin.topics import find_topic

    with access.open() as cluster:
        if group is None:
            return find_queue_name(cluster, topic).group
        find_topic(cluster, topic)
    return group


def _receive(member: QueueMember, count: int, seconds: float, verdict: Verdict, stop: Stop) -> int:
    """The number of records that were printed and acknowledged."""
    received, deadline = 0, time.monotonic() + seconds
    while received < count and not stop.is_requested and (left := deadline - time.monotonic()) > 0:
        records = member.receive(count - received, min(left, POLL_SECONDS))
        if not records:
            continue
        sys.stdout.buffer.write(b"".join(map(_line, records)))
        sys.stdout.flush()
        member.acknowledge(verdict)
        received += len(records)
        deadline = time.monotonic() + MORE_SECONDS
        if verdict.name == "RELEASE":
            # The next ones may be the same.
            break
    return received


def _line(held: HeldRecord) -> bytes:
    record = held.record
    return dump(
        held.partition.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        list(record.headers),
        job={"deliveries": held.deliveries},
    )
