"""Moving what a group has committed: first a plan that shows every change, then the change.

The end of a log moves on while somebody writes. Whoever agrees to a plan agrees to its offsets, not to an end that is
another one by then: `Agreed` is the target that asks for just these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millpond.admin.errors import Refused, unknown_partition
from millpond.admin.groups import Group, commit_offsets, describe_group, refuse_if_active
from millpond.admin.offsets import At, Bounds, Point, bounds_of, resolve
from millpond.admin.topics import find_topics
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group


@dataclass(frozen=True, slots=True)
class Shift:
    """So many records on, or back, from what is committed."""

    count: int


@dataclass(frozen=True, slots=True)
class Agreed:
    """The offsets of a plan that somebody has seen."""

    offsets: Mapping[TopicPartition, int]


Target = Point | Shift | Agreed


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one partition."""

    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    group: Group
    steps: tuple[Step, ...]

    @property
    def changes(self) -> list[Step]:
        return [step for step in self.steps if step.before != step.after]


def plan_reset(
    cluster: Cluster, name: str, topics: Iterable[tuple[str, Iterable[int] | None]], target: Target
) -> ResetPlan:
    """Everything that could be refused is refused here, before anything changes.

    `topics` are names with the partitions that are meant, None for all of them.
    """
    group = describe_group(cluster, name)
    refuse_if_active(group, "to reset it")
    partitions = _partitions(cluster, list(topics))
    before = committed_by_group(cluster, name)
    bounds = bounds_of(cluster, partitions)
    if isinstance(target, Agreed):
        if target.offsets.keys() != {*partitions}:
            raise Refused("The topics have other partitions by now: look at the plan again. Nothing was changed.")
        wanted = dict(target.offsets)
    elif isinstance(target, Shift | At):
        wanted = {each: _aimed(each, before.get(each), target) for each in partitions}
    else:
        wanted = resolve(cluster, bounds, target)
    return ResetPlan(group, tuple(_step(each, before.get(each), wanted[each], bounds[each]) for each in partitions))


def apply_reset(cluster: Cluster, plan: ResetPlan) -> None:
    commit_offsets(cluster, plan.group.id, {step.partition: step.after for step in plan.changes})


def _partitions(cluster: Cluster, topics: list[tuple[str, Iterable[int] | None]]) -> list[TopicPartition]:
    known = find_topics(cluster, [name for name, _ in topics], to_create=False)
    wanted: dict[TopicPartition, None] = {}
    for name, indexes in topics:
        there = known[name].partitions
        for index in sorted(there) if indexes is None else indexes:
            if index not in there:
                raise unknown_partition(name, index, len(there))
            wanted[TopicPartition(name, index)] = None
    return list(wanted)


def _aimed(partition: TopicPartition, before: int | None, target: Shift | At) -> int:
    if isinstance(target, At):
        return target.offset
    if before is None:
        raise Refused(
            f"The group has committed nothing for {partition.folder}, so there is nothing to "
            "shift from: give --to-earliest, --to-latest, --to-offset or --to-time."
        )
    return before + target.count


def _step(partition: TopicPartition, before: int | None, wanted: int, bound: Bounds) -> Step:
    after = min(max(bound.start, wanted), bound.end)
    note = ""
    if after > wanted:
        note = f"the log begins at {bound.start}, so {wanted} became {after}."
    elif after < wanted:
        note = f"the log ends at {bound.end}, so {wanted} became {after}."
    return Step(partition, before, after, note)
