"""`millpond trace`: where a record's time goes on its way from a producer to a reader, hop by hop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.errors import Failed
from millpond.cli.options import option
from millpond.cli.terminal import print_json
from millpond.cli.text import can_show, counted
from millpond.cli.trace.hops import Budget, chart, make_budget

if TYPE_CHECKING:
    from millpond.cli.trace.measurement import Leader, Traced
    from millpond.remote.cluster import Cluster

CLOCK_MS_MAX: Final = 3.0
"""Timestamps are whole milliseconds: a smaller difference says nothing about a clock."""

WIDTH_MAX: Final = 100


@click.command("trace")
@click.option(
    "--topic",
    metavar="TOPIC",
    type=TopicName(),
    help="Write to this topic instead of one made for it and deleted again.",
)
@click.option("-p", "--partition", metavar="N", type=click.IntRange(0), default=0, show_default=True)
@click.option("-n", "--count", metavar="N", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--size", metavar="BYTES", type=click.IntRange(0, 1_000_000), default=1000, show_default=True)
@option(
    "--linger",
    "linger_ms",
    meta="MS",
    type=click.FloatRange(0, 10_000),
    default=5,
    help="How long the producer waits for company.",
)
@click.option("--acks", type=click.Choice(["1", "all"]), default="all", show_default=True)
@click.option(
    "--commit", "does_commit", is_flag=True, help="The reader commits each record; `process` has that time."
)
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object.")
@cluster_options
def command(
    topic: str | None,
    partition: int,
    count: int,
    size: int,
    linger_ms: float,
    acks: str,
    does_commit: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Show where a record's time goes: linger, send, append, replicate, acknowledge, fetch, process.

    Records are sent one at a time, each after the last was read back; they carry the header millpond-trace. What
    cannot be seen from outside the broker is shown together, with the reason.

    \b
    Examples:
      millpond trace
      millpond trace --topic orders -n 200 --linger 0
      millpond trace --acks 1 --json
    """
    from millpond.admin.groups import delete_groups
    from millpond.cli.trace.measurement import trace

    with access.open() as cluster, _topic(cluster, topic) as name:
        leader, replicas = _leader(cluster, name, partition)
        traced = trace(
            access, leader, count=count, size=size, linger_ms=linger_ms, acks=acks, does_commit=does_commit
        )
        if does_commit:
            # Nobody will ask for what this group has read.
            delete_groups(cluster, [traced.group])
    # A single replica has nobody to wait for but its disk.
    safe_name = None if acks == "1" else "replicate" if replicas > 1 else "sync"
    budget = make_budget(traced.records, traced.leader_only_ms, safe_name)
    notes = _notes(traced, budget, safe_name, does_commit)
    if as_json:
        facts = {"topic": name, "partition": partition, "records": count, "size": size, "acks": acks}
        facts |= {"linger_ms": linger_ms, "replicas": replicas, "network_ms": traced.network_ms}
        print_json(facts | {"clock_ms": traced.clock_ms} | asdict(budget) | {"notes": notes}, indent=None)
        return
    where = f"{name} [{partition}]" if topic else "a topic of its own"
    head = f"{counted(count, 'record')} of {size} bytes to {where}, {counted(replicas, 'replica')}, acks={acks}"
    _print(head, budget, notes)


@contextmanager
def _topic(cluster: Cluster, name: str | None) -> Iterator[str]:
    """The topic that was named; or a new one, which the broker stamps, and which goes at the end."""
    from millpond.admin.topics import delete_topics
    from millpond.remote.topics import create_topic

    if name is not None:
        yield name
        return
    own = f"millpond-trace-{os.urandom(4).hex()}"
    create_topic(cluster, own, 1, settings={"message.timestamp.type": "LogAppendTime"})
    try:
        yield own
    finally:
        delete_topics(cluster, [own])


def _leader(cluster: Cluster, topic: str, partition: int) -> tuple[Leader, int]:
    """The leader of the partition, and how many replicas it has."""
    from millpond.admin.topics import find_topic
    from millpond.cli.trace.measurement import Leader

    partitions = find_topic(cluster, topic).partitions
    if partition not in partitions:
        raise Failed(
            f"Topic {topic} has {counted(len(partitions), 'partition')}, from 0 on: "
            f"there is no partition {partition}."
        )
    info = partitions[partition]
    address = cluster.addresses().get(info.leader)
    if address is None:
        raise Failed(f"Partition {partition} of {topic} has no leader at the moment: try again when it has one.")
    return Leader(topic, partition, info.leader, address), len(info.replicas)


def _notes(traced: Traced, budget: Budget, safe_name: str | None, does_commit: bool) -> list[str]:
    """What the reader of the chart has to know to trust it."""
    notes = [
        f"send and acknowledge have half of a TCP handshake each ({traced.network_ms:.2f} ms); the rest of the round "
        "trip is the broker's."
    ]
    if safe_name is not None:
        notes.append(
            f"append and {safe_name} cannot be seen apart from outside: p99 and worst are of both together. The "
            "median of append is that of as many records with acks=1."
        )
    if safe_name == "sync":
        notes.append("With one replica acks=all waits for no follower, at most for the disk.")
    if not does_commit:
        notes.append("process is the hand-over to the reader alone; --commit adds the commit of its offset.")
    if budget.is_read_early and safe_name is not None:
        notes.append(f"Readers had the records before {safe_name} was over: their fetch begins after append.")
    if traced.clock_ms is not None and abs(traced.clock_ms) > CLOCK_MS_MAX:
        ahead = "ahead of" if traced.clock_ms > 0 else "behind"
        notes.append(f"The broker's clock is about {abs(traced.clock_ms):.0f} ms {ahead} the one here.")
    return notes


def _print(head: str, budget: Budget, notes: list[str]) -> None:
    from textwrap import fill

    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    click.echo(click.style(head, bold=True))
    click.echo()
    for line in chart(budget, width):
        click.echo(line if can_show("█┐·") else line.translate(_PLAIN))
    click.echo()
    for note in notes:
        click.echo(fill(note, width, initial_indent="· " if can_show("█┐·") else "- ", subsequent_indent="  "))


_PLAIN: Final = str.maketrans({**dict.fromkeys("▏▎▍▌▋▊▉█", "#"), "┐": "\\", "┘": "/"})
