"""Delete the oldest records of dead-letter topics: plan first, then apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from millpond.admin.dead_letters.letters import LetterTopic, Progress, ignore_progress, poll_progress
from millpond.admin.dead_letters.redriven import read_redriven
from millpond.admin.errors import Refused
from millpond.admin.offsets import Bounds
from millpond.admin.topics import delete_records, find_topic
from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """Per partition, the offset before which everything is deleted. Later letters are not affected."""

    topic: str
    topic_id: UUID
    before: Mapping[TopicPartition, int]
    records: int
    waiting: int
    """Letters to be deleted that have not been redriven."""
    leaderless: tuple[int, ...]
    """Partitions without a leader; nothing is deleted from them."""


def plan_purge(
    cluster: Cluster,
    name: str,
    *,
    before_ms: int | None = None,
    only_redriven: bool = False,
    progress: Progress = ignore_progress,
) -> PurgePlan:
    """Plan to delete all current letters, those written before a time, or those before the first unredriven one."""
    topic = LetterTopic.find(cluster, name, poll_progress({}, progress))
    redriven = read_redriven(topic, poll_progress(topic.bounds, progress))
    ends = {each: bound.end for each, bound in topic.bounds.items()}
    if before_ms is not None:
        firsts = offsets.at_times(cluster, dict.fromkeys(ends, before_ms))
        ends = {each: end if (at := firsts[each]) is None else min(at, end) for each, end in ends.items()}
    cut = dict(ends)
    records = waiting = 0
    # Check every record before deleting any: a record that is not a dead letter stops the purge here.
    inside = {each: Bounds(topic.bounds[each].start, end) for each, end in ends.items()}
    for letter in topic.letters(inside, progress):
        partition, offset = TopicPartition(name, letter.message.partition), letter.message.offset
        if only_redriven and letter.id not in redriven:
            cut[partition] = min(cut[partition], offset)
        if offset < cut[partition]:
            records += 1
            waiting += letter.id not in redriven
    return PurgePlan(name, topic.info.topic_id, cut, records, waiting, topic.leaderless)


def apply_purge(cluster: Cluster, plan: PurgePlan) -> None:
    """Apply exactly this plan, however old; Refused if the topic has been recreated since."""
    if find_topic(cluster, plan.topic).topic_id != plan.topic_id:
        raise Refused(
            f"{plan.topic} was recreated since its letters were counted: count them again. Nothing was deleted."
        )
    delete_records(cluster, plan.before)
