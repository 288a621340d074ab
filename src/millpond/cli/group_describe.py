"""What `millpond group describe` finds out, and how it shows it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import click

from millpond.cli.connect import Cluster
from millpond.cli.groups import Member, find_groups
from millpond.cli.lag import NEVER, Ages, GroupLag, PartitionLag, Sample, lags_of, oldest_unread, take_sample
from millpond.cli.offsets import Partition
from millpond.cli.table import Cell, print_table
from millpond.cli.times import show_span

NOTHING: Final = "–"
RATE_WINDOW_SECONDS: Final = 30.0
"""Watching, rates are those of this long: auto-commits come seconds apart."""

CLEAR_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"


class Describer:
    """Looks at groups once or again and again; what it remembers of the last looks gives the rates."""

    def __init__(self, cluster: Cluster, names: list[str], sample_seconds: float) -> None:
        self._admin = cluster.admin()
        self._ages = Ages(cluster)
        self._names = names
        self._sample_seconds = sample_seconds
        self._samples: deque[Sample] = deque()

    def close(self) -> None:
        self._ages.close()

    def show(self, *, as_json: bool) -> None:
        found = self.look()
        if as_json:
            click.echo(json.dumps([group_json(each) for each in found], indent=2))
        else:
            print_groups(found)

    def watch(self, every_seconds: float, *, as_json: bool) -> None:
        """Until Ctrl-C, which is a good end.

        The signal is only noted: an exception in the middle of a question could be lost inside the client library.
        """
        stop = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: stop.set())
        try:
            while not stop.is_set():
                found = self.look()
                if as_json:
                    at = {"at_ms": time.time_ns() // 1_000_000}
                    click.echo(json.dumps(at | {"groups": [group_json(each) for each in found]}))
                else:
                    click.echo(CLEAR_SCREEN if sys.stdout.isatty() else "", nl=False)
                    click.secho(f"{time.strftime('%H:%M:%S')}  every {show_span(every_seconds * 1000)}", dim=True)
                    print_groups(found)
                    if not sys.stdout.isatty():
                        click.echo()
                sys.stdout.flush()
                stop.wait(every_seconds)
        finally:
            signal.signal(signal.SIGINT, before)

    def look(self) -> list[GroupLag]:
        groups = find_groups(self._admin, self._names)
        if not self._samples and self._sample_seconds:
            self._samples.append(take_sample(self._admin, groups))
            time.sleep(self._sample_seconds)
            groups = find_groups(self._admin, self._names)
        sample = take_sample(self._admin, groups)
        while len(self._samples) > 1 and sample.at_seconds - self._samples[0].at_seconds > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        before = self._samples[0] if self._samples and self._sample_seconds else None
        self._samples.append(sample)
        return lags_of(groups, sample, before, self._ages.of(oldest_unread(sample)))


# As JSON: numbers plain, times in the unit that the name says, null for what is not known.


def group_json(told: GroupLag) -> dict[str, Any]:
    group = told.group
    return {
        "group": group.id,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": told.lag,
        "behind_ms": told.behind_ms,
        "lost": told.lost,
        "uncounted": told.uncounted,
        "read_per_second": told.read_per_second,
        "written_per_second": told.written_per_second,
        "catch_up_seconds": _finite(told.catch_up_seconds),
        "members": [
            {
                "id": member.id,
                "instance": member.instance,
                "client": member.client,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": index} for topic, index in member.partitions],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "member": each.member,
                "start": each.start,
                "end": each.end,
                "committed": each.committed,
                "lag": each.lag,
                "behind_ms": each.behind_ms,
                "lost": each.lost,
                "read_per_second": each.read_per_second,
                "written_per_second": each.written_per_second,
                "catch_up_seconds": _finite(each.catch_up_seconds),
            }
            for each in told.partitions
        ],
    }


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == NEVER else seconds


# For people.


def print_groups(found: list[GroupLag]) -> None:
    for at, told in enumerate(found):
        if at:
            click.echo()
        print_group(told)


def print_group(told: GroupLag) -> None:
    group = told.group
    click.secho(f"{group.id}: {group.state}, {_count(len(group.members), 'member')}, {_lag(told)}", bold=True)
    facts = [f"{group.type} protocol"]
    facts += [f"assignor {group.assignor}"] if group.assignor else []
    facts += [f"coordinator {group.coordinator}"] if group.coordinator else []
    click.echo(", ".join(facts) + pace(told))
    numbers = {member.id: f"#{at}" for at, member in enumerate(group.members, 1)}
    if group.members:
        click.echo()
        print_table(
            ("By", "Member", "Client", "Host", "Partitions"),
            [(numbers[each.id], _who(each), each.client, each.host, _held(each)) for each in group.members],
            words=5,
        )
    for topic, partitions in groupby(told.partitions, key=lambda each: each.topic):
        click.echo()
        click.secho(topic, bold=True)
        print_table(
            ("By", "Partition", "Start", "Committed", "End", "Lag", "Behind", "Rate", "Left"),
            [_row(each, numbers) for each in partitions],
        )
    if not told.partitions:
        click.echo("It has committed nothing and nothing is assigned.")
    if told.uncounted:
        click.echo(f"\nThe lag leaves out {told.uncounted:,} records of partitions with nothing committed.")
    if told.lost:
        click.echo(
            f"\n{told.lost:,} records were deleted before this group read them: retention is too short for it."
        )


def pace(told: GroupLag) -> str:
    """The end of a sentence: how fast it reads, and where that leads."""
    if not told.read_per_second:
        return ""
    text = f"\nreads {_rate(told.read_per_second)}"
    left = told.catch_up_seconds
    if left is None:
        return text
    if left == NEVER:
        return f"{text}, while {_rate(told.written_per_second)} come in: it does not catch up"
    return f"{text}: caught up in {show_span(left * 1000)}"


def _row(each: PartitionLag, numbers: dict[str, str]) -> list[Cell]:
    left = each.catch_up_seconds
    return [
        numbers.get(each.member or "", NOTHING),
        each.partition,
        _known(each.start),
        _known(each.committed),
        _known(each.end),
        _known(each.lag),
        NOTHING if each.behind_ms is None else show_span(each.behind_ms),
        _rate(each.read_per_second),
        NOTHING if left is None else "never" if left == NEVER else show_span(left * 1000),
    ]


def _lag(told: GroupLag) -> str:
    if not any(each.lag is not None for each in told.partitions):
        return "lag unknown" if told.partitions else "no partitions"
    if not told.lag:
        return "no lag"
    behind = f", {show_span(told.behind_ms)} behind" if told.behind_ms is not None else ""
    return f"lag {_count(told.lag, 'record')}{behind}"


def _known(number: int | None) -> Cell:
    return NOTHING if number is None else number


def _rate(per_second: float | None) -> str:
    if not per_second:
        return NOTHING
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _who(member: Member) -> str:
    return f"{member.instance} ({member.id})" if member.instance else member.id


def _held(member: Member) -> str:
    return show_partitions(member.partitions) or NOTHING


def show_partitions(partitions: Iterable[Partition]) -> str:
    """`orders 0-3, 7; refunds 1`."""
    told = []
    for topic, held in groupby(sorted(partitions), key=lambda each: each[0]):
        told.append(f"{topic} {_runs([index for _, index in held])}")
    return "; ".join(told)


def _runs(indexes: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)
