"""The options of `millpond group reset`, and how it shows the plan."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millpond.admin.groups import DEAD
from millpond.admin.offset_reset import ResetPlan, Shift, Target
from millpond.admin.offsets import At, Beginning, End, Since
from millpond.cli.options import read_moment
from millpond.cli.terminal import Cell, print_table
from millpond.cli.text import NOTHING


def read_target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_time: str | None, shift: int | None, at_ms: int
) -> Target:
    """The target that the options name; exactly one."""
    targets: list[Target | None] = [
        Beginning() if to_earliest else None,
        End() if to_latest else None,
        At(to_offset) if to_offset is not None else None,
        Since(read_moment("--to-time", to_time, at_ms)) if to_time is not None else None,
        Shift(shift) if shift is not None else None,
    ]
    match [each for each in targets if each is not None]:
        case [target]:
            return target
    raise click.UsageError("Name one target: --to-earliest, --to-latest, --to-offset, --to-time or --shift.")


def read_topics(texts: Sequence[str]) -> list[tuple[str, list[int] | None]]:
    """`T` means every partition of the topic, `T:0,3` those two."""
    topics: list[tuple[str, list[int] | None]] = []
    for text in texts:
        topic, colon, listed = text.partition(":")
        try:
            topics.append((topic, [int(part) for part in listed.split(",")] if colon else None))
        except ValueError:
            raise click.UsageError(f"--topic {text}: give partitions as {topic}:0,3.") from None
    return topics


def print_plan(plan: ResetPlan) -> None:
    if plan.group.state == DEAD:
        click.echo(f"There is no group {plan.group.id} yet: it will be created with these offsets.")
    rows: list[list[Cell]] = []
    for step in plan.steps:
        before = step.before
        change = "" if before is None else f"{step.after - before:+,}" if step.after != before else "stays"
        rows.append([*step.partition, NOTHING if before is None else before, step.after, change])
    print_table(("Topic", "Partition", "Before", "After", "Change"), rows)
    for step in plan.steps:
        if step.note:
            click.echo(f"{step.partition.folder}: {step.note}")


def plan_object(plan: ResetPlan, *, is_done: bool) -> dict[str, object]:
    """The same for programs."""
    return {
        "group": plan.group.id,
        "is_done": is_done,
        "steps": [
            {
                "topic": step.partition.topic,
                "partition": step.partition.partition,
                "before": step.before,
                "after": step.after,
                "note": step.note,
            }
            for step in plan.steps
        ],
    }
