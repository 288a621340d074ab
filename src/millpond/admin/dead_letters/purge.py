"""Cutting dead-letter topics from their beginning: first what would go, then the cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.admin.dead_letters.letters import LetterTopic
from millpond.admin.dead_letters.redriven import read_redriven
from millpond.admin.offsets import Bounds
from millpond.admin.topics import delete_records
from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What is to go: in each partition everything before an offset."""

    before: Mapping[TopicPartition, int]
    records: int
    waiting: int
    """Letters among them that have not been redriven."""


def plan_purge(
    cluster: Cluster, name: str, *, before_ms: int | None = None, only_redriven: bool = False
) -> PurgePlan:
    """All letters that are there now; those written before a moment; those before the first that still waits."""
    topic = LetterTopic.find(cluster, name)
    redriven = read_redriven(topic)
    ends = {each: bound.end for each, bound in topic.bounds.items()}
    if before_ms is not None:
        firsts = offsets.at_times(cluster, dict.fromkeys(ends, before_ms))
        ends = {each: end if (at := firsts[each]) is None else min(at, end) for each, end in ends.items()}
    cut = dict(ends)
    records = waiting = 0
    # Every record is looked at before any is deleted: one that is no dead letter stops it here.
    for letter in topic.letters({each: Bounds(topic.bounds[each].start, end) for each, end in ends.items()}):
        partition, offset = TopicPartition(name, letter.message.partition), letter.message.offset
        if only_redriven and letter.id not in redriven:
            cut[partition] = min(cut[partition], offset)
        if offset < cut[partition]:
            records += 1
            waiting += letter.id not in redriven
    return PurgePlan(cut, records, waiting)


def apply_purge(cluster: Cluster, plan: PurgePlan) -> None:
    delete_records(cluster, plan.before)
