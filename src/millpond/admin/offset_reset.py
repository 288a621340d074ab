"""Resets the committed offsets of a group: first a plan that shows every change, then the change.

The end of a log advances while records are written. Agreeing to a plan means agreeing to its offsets, not to a later
end: `plan_agreed` makes the plan again with exactly these offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from millpond.admin.errors import Refused, unknown_partition
from millpond.admin.groups import SHARE, Group, commit_offsets, describe_group, refuse_if_active
from millpond.admin.offsets import At, Bounds, Point, bounds_of, resolve
from millpond.admin.topics import find_topics
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import committed_by_group


@dataclass(frozen=True, slots=True)
class Shift:
    """Forward or back by this many records from the committed offset."""

    count: int


Target = Point | Shift
PlannedOffsets = Mapping[TopicPartition, tuple[int | None, int]]
"""The committed offset of each partition, before and after."""
_Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Step:
    """The change of one partition."""

    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    group: Group
    steps: tuple[Step, ...]

    @property
    def offsets(self) -> PlannedOffsets:
        return {step.partition: (step.before, step.after) for step in self.steps}

    @property
    def changes(self) -> list[Step]:
        return [step for step in self.steps if step.before != step.after]


def plan_reset(
    cluster: Cluster, name: str, topics: Iterable[tuple[str, Iterable[int] | None]], target: Target
) -> ResetPlan:
    """Refuses everything that can be refused, before anything changes.

    `topics` maps names to partitions, or None for all of them.
    """

    def new_offsets(before: _Offsets, bounds: Mapping[TopicPartition, Bounds]) -> _Offsets:
        if isinstance(target, Shift | At):
            return {each: _aimed(each, before.get(each), target) for each in bounds}
        return resolve(cluster, bounds, target)

    return _plan(cluster, name, list(topics), new_offsets)


def plan_agreed(
    cluster: Cluster, name: str, topics: Iterable[tuple[str, Iterable[int] | None]], agreed: PlannedOffsets
) -> ResetPlan:
    """The plan that was shown; raises Refused if exactly that is no longer possible."""
    plan = _plan(
        cluster,
        name,
        list(topics),
        lambda _, bounds: {each: agreed[each][1] if each in agreed else bound.end for each, bound in bounds.items()},
    )
    if plan.offsets != agreed:
        raise Refused("The offsets have changed since the preview: preview them again. Nothing was changed.")
    return plan


def _plan(
    cluster: Cluster,
    name: str,
    topics: list[tuple[str, Iterable[int] | None]],
    choose_offsets: Callable[[_Offsets, Mapping[TopicPartition, Bounds]], _Offsets],
) -> ResetPlan:
    """`wanted` computes the new offset from the committed offset and the bounds of the partition."""
    group = describe_group(cluster, name)
    if group.type == SHARE:
        raise Refused(f"Group {name} is a share group, which commits no offsets: use `kafka-share-groups.sh`.")
    refuse_if_active(group, "to reset it")
    partitions = _partitions(cluster, topics)
    before = committed_by_group(cluster, name)
    bounds = bounds_of(cluster, partitions)
    after = choose_offsets(before, bounds)
    return ResetPlan(group, tuple(_step(each, before.get(each), after[each], bounds[each]) for each in partitions))


def apply_reset(cluster: Cluster, plan: ResetPlan) -> None:
    commit_offsets(cluster, plan.group.id, {step.partition: step.after for step in plan.changes})


def _partitions(cluster: Cluster, topics: list[tuple[str, Iterable[int] | None]]) -> list[TopicPartition]:
    infos = find_topics(cluster, [name for name, _ in topics], to_create=False)
    partitions: dict[TopicPartition, None] = {}
    for name, indexes in topics:
        there = infos[name].partitions
        for index in sorted(there) if indexes is None else indexes:
            if index not in there:
                raise unknown_partition(name, index, len(there))
            partitions[TopicPartition(name, index)] = None
    return list(partitions)


def _aimed(partition: TopicPartition, before: int | None, target: Shift | At) -> int:
    if isinstance(target, At):
        return target.offset
    if before is None:
        raise Refused(
            f"The group has committed nothing for {partition.folder}, so there is nothing to "
            "shift from: give --to-earliest, --to-latest, --to-offset or --to-time."
        )
    return before + target.count


def _step(partition: TopicPartition, before: int | None, target: int, bound: Bounds) -> Step:
    after = min(max(bound.start, target), bound.end)
    note = ""
    if after > target:
        note = f"the log begins at {bound.start}, so {target} became {after}."
    elif after < target:
        note = f"the log ends at {bound.end}, so {target} became {after}."
    return Step(partition, before, after, note)
