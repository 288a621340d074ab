"""The output of `millpond topic describe`."""

from __future__ import annotations

import click

from millpond.admin.topics import TopicFacts
from millpond.base.units import show_bytes
from millpond.cli.terminal import Cell, print_table
from millpond.cli.text import counted


def print_description(topic: TopicFacts) -> None:
    records = sum((each.end or 0) - (each.start or 0) for each in topic.partitions)
    sizes = [each.size_bytes for each in topic.partitions if each.size_bytes is not None]
    size = f", {show_bytes(sum(sizes))}" if sizes else ""
    # Offsets, not records: compaction and control records use offsets, too.
    click.secho(f"{topic.name}: {counted(len(topic.partitions), 'partition')}, {records:,} offsets{size}", bold=True)
    rows: list[list[Cell]] = [
        [
            each.partition,
            "none" if each.leader < 0 else each.leader,
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)),
            "-" if each.start is None else each.start,
            "-" if each.end is None else each.end,
            "-" if each.size_bytes is None else show_bytes(each.size_bytes),
        ]
        for each in topic.partitions
    ]
    print_table(("Partition", "Leader", "Replicas", "In sync", "Start", "End", "Size"), rows, words=0)
    if topic.settings:
        click.echo()
        print_table(
            ("Setting", "Value", "From"),
            [
                (each.name, each.value if each.value is not None else "(hidden)", each.source)
                for each in topic.settings
            ],
            words=3,
        )
