"""The output of `millpond group describe`: groups and their lag."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

import click

from millpond.admin.groups import Member
from millpond.admin.lag import NEVER, GroupLag, LagWatch, PartitionLag
from millpond.base.ids import TopicPartition
from millpond.cli.stop import stop_on
from millpond.cli.terminal import Cell, print_json, print_table
from millpond.cli.text import NOTHING, counted
from millpond.cli.times import now_ms, show_span

CLEAR_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"


def show_groups(groups: list[GroupLag], *, as_json: bool) -> None:
    if as_json:
        print_json([group_json(each) for each in groups])
    else:
        print_groups(groups)


def watch_groups(lags: LagWatch, every_seconds: float, *, as_json: bool) -> None:
    """Repeats until Ctrl-C, which is not a failure."""
    with stop_on(signal.SIGINT) as stop:
        while not stop.is_requested:
            groups = lags.look()
            if as_json:
                print_json({"at_ms": now_ms(), "groups": [group_json(each) for each in groups]}, indent=None)
            else:
                click.echo(CLEAR_SCREEN if sys.stdout.isatty() else "", nl=False)
                click.secho(f"{time.strftime('%H:%M:%S')}  every {show_span(every_seconds * 1000)}", dim=True)
                print_groups(groups)
                if not sys.stdout.isatty():
                    click.echo()
            sys.stdout.flush()
            stop.wait(every_seconds)


# As JSON: plain numbers, times in the unit of the name, null for unknown.


def group_json(group_lag: GroupLag) -> dict[str, Any]:
    group = group_lag.group
    return {
        "group": group.id,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": group_lag.lag,
        "behind_ms": group_lag.behind_ms,
        "lost": group_lag.lost,
        "uncommitted": group_lag.uncommitted,
        "read_per_second": group_lag.read_per_second,
        "written_per_second": group_lag.written_per_second,
        "catch_up_seconds": _finite(group_lag.catch_up_seconds),
        "members": [
            asdict(each) | {"partitions": [owned._asdict() for owned in each.partitions]} for each in group.members
        ],
        "partitions": [
            asdict(each) | {"catch_up_seconds": _finite(each.catch_up_seconds)} for each in group_lag.partitions
        ],
    }


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == NEVER else seconds


# For people.


def print_groups(groups: Sequence[GroupLag]) -> None:
    for at, group_lag in enumerate(groups):
        if at:
            click.echo()
        print_group(group_lag)


def print_group(group_lag: GroupLag) -> None:
    group = group_lag.group
    click.secho(f"{group.id}: {group.state}, {counted(len(group.members), 'member')}, {_lag(group_lag)}", bold=True)
    facts = [f"{group.type} protocol"]
    facts += [f"assignor {group.assignor}"] if group.assignor else []
    facts += [f"coordinator {group.coordinator}"] if group.coordinator else []
    click.echo(", ".join(facts) + pace(group_lag))
    numbers = {member.id: f"#{at}" for at, member in enumerate(group.members, 1)}
    if group.members:
        click.echo()
        print_table(
            ("By", "Member", "Client", "Host", "Partitions"),
            [(numbers[each.id], _who(each), each.client, each.host, _held(each)) for each in group.members],
            words=5,
        )
    for topic, partitions in groupby(group_lag.partitions, key=lambda each: each.topic):
        click.echo()
        click.secho(topic, bold=True)
        print_table(
            ("By", "Partition", "Start", "Committed", "End", "Lag", "Behind", "Rate", "Left"),
            [_row(each, numbers) for each in partitions],
        )
    if not group_lag.partitions:
        click.echo("No committed offsets, and nothing is assigned.")
    if group_lag.uncommitted:
        click.echo(
            f"\nThe lag includes {counted(group_lag.uncommitted, 'record')} in partitions without a committed "
            "offset; readers with auto.offset.reset=latest skip them."
        )
    if group_lag.lost:
        click.echo(
            f"\n{group_lag.lost:,} records were deleted before this group read them: retention is too short for it."
        )


def pace(group_lag: GroupLag) -> str:
    """The end of a sentence: the rate, and when it catches up."""
    if not group_lag.read_per_second:
        return ""
    text = f"\nreads {_rate(group_lag.read_per_second)}"
    left = group_lag.catch_up_seconds
    if left is None:
        return text
    if left == NEVER:
        return f"{text}, while {_rate(group_lag.written_per_second)} come in: it does not catch up"
    return f"{text}: caught up in {show_span(left * 1000)}"


def _row(each: PartitionLag, numbers: dict[str, str]) -> list[Cell]:
    left = each.catch_up_seconds
    return [
        numbers.get(each.member or "", NOTHING),
        each.partition,
        _number(each.start),
        _number(each.committed),
        _number(each.end),
        _number(each.lag),
        NOTHING if each.behind_ms is None else show_span(each.behind_ms),
        _rate(each.read_per_second),
        NOTHING if left is None else "never" if left == NEVER else show_span(left * 1000),
    ]


def _lag(group_lag: GroupLag) -> str:
    if not any(each.lag is not None for each in group_lag.partitions):
        return "lag unknown" if group_lag.partitions else "no partitions"
    if not group_lag.lag:
        return "no lag"
    behind = f", {show_span(group_lag.behind_ms)} behind" if group_lag.behind_ms is not None else ""
    return f"lag {counted(group_lag.lag, 'record')}{behind}"


def _number(number: int | None) -> Cell:
    return NOTHING if number is None else number


def _rate(per_second: float | None) -> str:
    if not per_second:
        return NOTHING
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


def _who(member: Member) -> str:
    return f"{member.instance} ({member.id})" if member.instance else member.id


def _held(member: Member) -> str:
    return show_partitions(member.partitions) or NOTHING


def show_partitions(partitions: Iterable[TopicPartition]) -> str:
    """`orders 0-3, 7; refunds 1`."""
    parts = []
    for topic, held in groupby(sorted(partitions), key=lambda each: each[0]):
        parts.append(f"{topic} {_runs([index for _, index in held])}")
    return "; ".join(parts)


def _runs(indexes: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)
