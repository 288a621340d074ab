"""`millpond trace`: where a record spends its time between producer and reader, hop by hop."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.completion.names import TopicName
from millpond.cli.options import option
from millpond.cli.terminal import print_json
from millpond.cli.text import can_show, counted

if TYPE_CHECKING:
    from millpond.admin.trace.run import Trace

WIDTH_MAX: Final = 100


@click.command("trace")
@click.option(
    "--topic",
    metavar="TOPIC",
    type=TopicName(),
    help="Write to this topic instead of a temporary one.",
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
    help="How long the producer waits to fill a batch.",
)
@click.option("--acks", type=click.Choice(["1", "all"]), default="all", show_default=True)
@click.option(
    "--commit", "does_commit", is_flag=True, help="The reader commits each record; `process` includes that."
)
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object.")
@cluster_options
def command(
    topic: str | None,
    partition: int,
    count: int,
    size: int,
    linger_ms: float,
    acks: Literal["1", "all"],
    does_commit: bool,
    as_json: bool,
    access: Access,
) -> None:
    """Show where a record spends its time: linger, send, append, replicate, acknowledge, fetch, process.

    Records are sent one at a time, each after the previous one was read back; they carry the header millpond-trace.
    Hops that cannot be measured from outside the broker are combined, with the reason.

    \b
    Examples:
      millpond trace
      millpond trace --topic orders -n 200 --linger 0
      millpond trace --acks 1 --json
    """
    from millpond.admin.trace.measurement import TraceOrder
    from millpond.admin.trace.run import run_trace

    order = TraceOrder(topic, partition, count, size, linger_ms, acks, does_commit)
    with access.open() as cluster:
        trace = run_trace(cluster, access, order)
    if as_json:
        facts = {"topic": trace.topic, "partition": partition, "records": count, "size": size, "acks": acks}
        facts |= {"linger_ms": linger_ms, "replicas": trace.replicas, "network_ms": trace.network_ms}
        print_json(facts | {"clock_ms": trace.clock_ms} | asdict(trace.budget) | {"notes": trace.notes}, indent=None)
        return
    where = f"{trace.topic} [{partition}]" if topic else "a temporary topic"
    replicas = counted(trace.replicas, "replica")
    _print(f"{counted(count, 'record')} of {size} bytes to {where}, {replicas}, acks={acks}", trace)


def _print(head: str, trace: Trace) -> None:
    from textwrap import fill

    from millpond.cli.trace.chart import chart

    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    click.echo(click.style(head, bold=True))
    click.echo()
    for line in chart(trace.budget, width):
        click.echo(line if can_show("█┐·") else line.translate(_PLAIN))
    click.echo()
    for note in trace.notes:
        click.echo(fill(note, width, initial_indent="· " if can_show("█┐·") else "- ", subsequent_indent="  "))


_PLAIN: Final = str.maketrans({**dict.fromkeys("▏▎▍▌▋▊▉█", "#"), "┐": "\\", "┘": "/"})
