"""What `millpond group reset` would change, and the change itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from millpond.cli.connect import topics_of
from millpond.cli.errors import Failed, unknown_topic
from millpond.cli.groups import (
    DEAD,
    Group,
    commit_offsets,
    committed_offsets,
    describe_groups,
    refuse_if_active,
)
from millpond.cli.offsets import Bounds, Partition, bounds_of, resolve
from millpond.cli.table import Cell, print_table
from millpond.cli.times import At, Beginning, End, Place, Since, read_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class Shift:
    """So many records on, or back, from what is committed."""

    count: int


Target = Place | Shift


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one partition."""

    partition: Partition
    before: int | None
    after: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    group: Group
    steps: list[Step]

    @property
    def changes(self) -> list[Step]:
        return [step for step in self.steps if step.before != step.after]


def read_target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_time: str | None, shift: int | None, now_ms: int
) -> Target:
    """The one place that the options name."""
    named: list[Target] = []
    if to_earliest:
        named.append(Beginning())
    if to_latest:
        named.append(End())
    if to_offset is not None:
        named.append(At(to_offset))
    if to_time is not None:
        try:
            named.append(Since(read_time(to_time, now_ms)))
        except (ValueError, OverflowError):
            raise click.UsageError(f"--to-time {to_time}: give a time as 2026-01-31T08:30 or a span as 5m.") from None
    if shift is not None:
        named.append(Shift(shift))
    if len(named) != 1:
        raise click.UsageError("Name one place: --to-earliest, --to-latest, --to-offset, --to-time or --shift.")
    return named[0]


def plan(admin: AdminClient, name: str, topics: Sequence[str], target: Target) -> Plan:
    """Everything that could be refused is refused here, before anything changes."""
    group = describe_groups(admin, [name])[name]
    refuse_if_active(group, "to reset it")
    partitions = _partitions(admin, topics)
    before = committed_offsets(admin, [name])[name]
    bounds = bounds_of(admin, partitions)
    if isinstance(target, Shift | At):
        wanted = {each: _aimed(each, before.get(each), target) for each in partitions}
    else:
        wanted = resolve(admin, bounds, target)
    return Plan(group, [_step(each, before.get(each), wanted[each], bounds[each]) for each in partitions])


def apply(admin: AdminClient, made: Plan) -> None:
    commit_offsets(admin, made.group.id, {step.partition: step.after for step in made.changes})


def print_plan(made: Plan) -> None:
    if made.group.state == DEAD:
        click.echo(f"There is no group {made.group.id} yet: it comes into being with these offsets.")
    rows: list[list[Cell]] = []
    for step in made.steps:
        topic, index = step.partition
        before = step.before
        change = "" if before is None else f"{step.after - before:+,}" if step.after != before else "stays"
        rows.append([topic, index, "–" if before is None else before, step.after, change])
    print_table(("Topic", "Partition", "Before", "After", "Change"), rows)
    for step in made.steps:
        if step.note:
            click.echo(f"{step.partition[0]}-{step.partition[1]}: {step.note}")


def _partitions(admin: AdminClient, texts: Sequence[str]) -> list[Partition]:
    """`T` is every partition of the topic, `T:0,3` those two."""
    there = topics_of(admin)
    found: dict[Partition, None] = {}
    for text in texts:
        topic, _, listed = text.partition(":")
        if topic not in there:
            raise unknown_topic(topic, there, to_create=False)
        known = there[topic].partitions
        try:
            indexes = [int(part) for part in listed.split(",")] if ":" in text else sorted(known)
        except ValueError:
            raise click.UsageError(f"--topic {text}: give partitions as {topic}:0,3.") from None
        for index in indexes:
            if index not in known:
                raise Failed(f"{topic} has no partition {index}: they go from 0 to {len(known) - 1}.")
            found[topic, index] = None
    return list(found)


def _aimed(partition: Partition, before: int | None, target: Shift | At) -> int:
    if isinstance(target, At):
        return target.offset
    if before is None:
        raise Failed(
            f"The group has committed nothing for {partition[0]}-{partition[1]}, so there is nothing to shift from: "
            "name a place with --to-earliest, --to-latest, --to-offset or --to-time."
        )
    return before + target.count


def _step(partition: Partition, before: int | None, wanted: int, bound: Bounds) -> Step:
    after = min(max(bound.start, wanted), bound.end)
    note = ""
    if after > wanted:
        note = f"the log begins at {bound.start}, so {wanted} became {after}."
    elif after < wanted:
        note = f"the log ends at {bound.end}, so {wanted} became {after}."
    return Step(partition, before, after, note)
