"""AlterPartitionReassignments and ListPartitionReassignments.

Each partition has its own result. `moves` has the rules of a reassignment.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.base.errors import ErrorCode, Refused
from millpond.base.values import dataclass
from millpond.config.effective import NodeLayers
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.elections import TopicRules, change_record
from millpond.metadata.image import Image, Partition
from millpond.metadata.moves import begin, cancel, is_moving, target_of
from millpond.metadata.records import Record
from millpond.metadata.topics import REPLICATION_FACTOR_MAX


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The requested replicas of a partition; None cancels its reassignment."""

    topic: str
    index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reassigned:
    topic: str
    index: int
    verdict: Verdict


def decide_alter_reassignments(
    image: Image, layers: NodeLayers, reassignments: Sequence[Reassignment], *, may_change_factor: bool = True
) -> Decision[tuple[Reassigned, ...]]:
    """One reply for each named partition. Repeating a current request changes nothing."""
    rules = TopicRules(image, layers)
    records: list[Record] = []
    replies: list[Reassigned] = []
    named: set[tuple[str, int]] = set()
    for each in reassignments:
        verdict = OK
        try:
            if (each.topic, each.index) in named:
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"partition {each.topic}-{each.index} appears twice in the request"
                )
            named.add((each.topic, each.index))
            topic, before = image.topics.get(each.topic), image.partition(each.topic, each.index)
            if topic is None or before is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {each.topic}-{each.index}")
            if each.replicas is None:
                after = _called_off(image, before, rules, each.topic)
            else:
                _check_target(image, before, each.replicas, may_change_factor)
                after = begin(before, each.replicas, rules.of(each.topic), image.is_active)
        except Refused as refused:
            verdict = Verdict.of(refused)
        else:
            if after != before:
                records.append(change_record(topic.id, each.index, before, after))
        replies.append(Reassigned(each.topic, each.index, verdict))
    return Decision(tuple(records), tuple(replies))


def _called_off(image: Image, before: Partition, rules: TopicRules, topic: str) -> Partition:
    if not is_moving(before):
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition has no reassignment in progress")
    after = cancel(before, rules.of(topic), image.is_active)
    if isinstance(after, str):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, after)
    return after


def _check_target(image: Image, before: Partition, target: tuple[int, ...], may_change_factor: bool) -> None:
    fault = None
    if not target:
        fault = "a partition needs at least one replica"
    elif len(target) > REPLICATION_FACTOR_MAX:
        fault = f"a partition may have at most {REPLICATION_FACTOR_MAX} replicas"
    elif len(set(target)) < len(target):
        fault = f"duplicate broker in the replicas of a partition: {list(target)}"
    elif unknown := [each for each in target if each not in image.brokers]:
        fault = f"unknown broker {unknown[0]}"
    if fault is not None:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    factor = len(target_of(before))
    if not may_change_factor and len(target) != factor:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {factor} to {len(target)}, which the request does not allow",
        )


@dataclass(frozen=True, slots=True)
class Moving:
    """A partition that is being reassigned, and its state."""

    topic: str
    index: int
    partition: Partition


def decide_list_reassignments(
    image: Image, partitions: Sequence[tuple[str, int]] | None
) -> Decision[tuple[Moving, ...]]:
    """Those of these partitions, or of all, that are being reassigned."""
    if partitions is None:
        return Decision((), tuple(Moving(topic.name, index, partition) for topic, index, partition in image.moving()))
    moving = []
    for topic_name, index in dict.fromkeys(partitions):
        partition = image.partition(topic_name, index)
        if partition is not None and is_moving(partition):
            moving.append(Moving(topic_name, index, partition))
    return Decision((), tuple(moving))
