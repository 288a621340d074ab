"""Changes of leaders and ISRs: when brokers fail, return or catch up, and on request.

`leadership` decides one partition; this module selects the partitions and writes the records. A decision writes at
most a slice, so that no batch grows with the cluster: the caller repeats it until it is done. Each slice is complete,
so that another controller can continue after any of them.

A partition with one replica is left alone whatever its broker does: no other can lead it, and a node with ten
thousand of them would write as many records at each shutdown. The broker's own state shows whether its leader is
alive. One without a leader, because its reassignment was cancelled while its broker was down, waits for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Final
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass, names_of
from millpond.config.effective import NodeLayers
from millpond.config.topic import FLUSH_ACK, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.image import Image, Partition, Topic
from millpond.metadata.leadership import (
    NO_LEADER,
    CanLead,
    IsrChange,
    Loss,
    Rules,
    back,
    change,
    concerns,
    decide_isr_change,
    elect_unclean,
    without,
)
from millpond.metadata.moves import settled
from millpond.metadata.records import (
    LEADER_UNCHANGED,
    RECOVERED,
    RECOVERING,
    RECOVERY_UNCHANGED,
    PartitionChangeRecord,
    Record,
)
from millpond.metadata.unclean_recovery import LogEnds, ReplicaLogEnd, longest_log

SLICE: Final = 250
"""How many partitions one decision changes at most: that takes the loop about 10 ms."""


class TopicRules:
    """The rules of each topic, looked up once per decision."""

    def __init__(self, image: Image, layers: NodeLayers) -> None:
        self._image = image
        self._layers = layers
        self._by_topic: dict[str, Rules] = {}

    def of(self, topic: str) -> Rules:
        rules = self._by_topic.get(topic)
        if rules is None:
            settings = self._layers.topic_settings(self._image.topic_config(topic))
            rules = self._by_topic[topic] = Rules(
                settings[MIN_INSYNC_REPLICAS],
                settings[UNCLEAN_LEADER_ELECTION_ENABLE],
                syncs_first=settings[FLUSH_ACK] == "always",
            )
        return rules


def change_record(topic_id: UUID, index: int, before: Partition, after: Partition) -> PartitionChangeRecord:
    """The record that turns `before` into `after`. They differ by at most one step of either epoch."""
    led_anew = after.leader_epoch != before.leader_epoch
    assert after.partition_epoch == before.partition_epoch + 1, (before, after)
    assert after.leader_epoch == before.leader_epoch + led_anew, (before, after)
    assert led_anew or after.leader == before.leader, (before, after)
    recovery = RECOVERY_UNCHANGED
    if after.is_recovering != before.is_recovering:
        recovery = RECOVERING if after.is_recovering else RECOVERED
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=_if_changed(before.isr, after.isr),
        leader=after.leader if led_anew else LEADER_UNCHANGED,
        replicas=_if_changed(before.replicas, after.replicas),
        removing_replicas=_if_changed(before.removing_replicas, after.removing_replicas),
        adding_replicas=_if_changed(before.adding_replicas, after.adding_replicas),
        leader_recovery_state=recovery,
        eligible_leader_replicas=_if_changed(before.elr, after.elr),
        last_known_elr=_if_changed(before.last_known, after.last_known),
    )


def _if_changed(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if after == before else after


# Brokers fail and return.


class Slice(NamedTuple):
    """A part of a long change."""

    records: list[Record]
    is_last: bool


def leave(image: Image, layers: NodeLayers, broker_id: int, loss: Loss = Loss.NOTHING) -> Slice:
    """Remove a broker that cannot lead from its leaderships and ISRs.

    What it may have lost it also lacked while it was away, so it may not be eligible.
    """

    def can_lead(other: int) -> bool:
        return other != broker_id and image.is_active(other)

    def after(partition: Partition, rules: Rules) -> Partition:
        left = without(partition, broker_id, rules, can_lead, loss=loss)
        return settled(partition, left, rules, can_lead)

    # Cheaper than computing each change: all but the first slice skip what has changed already.
    held = (each for each in _held_with_others(image, broker_id) if concerns(each[2], broker_id, loss))
    return _slice(image, layers, held, after)


def come_back(image: Image, layers: NodeLayers, broker_id: int) -> Slice:
    """Give leaderless partitions of a returned broker a leader."""

    def can_lead(other: int) -> bool:
        return other == broker_id or image.is_active(other)

    def after(partition: Partition, rules: Rules) -> Partition:
        return settled(partition, back(partition, broker_id, rules, can_lead), rules, can_lead)

    held = (each for each in _held_with_others(image, broker_id) if each[2].leader == NO_LEADER)
    return _slice(image, layers, held, after)


def relieve(image: Image, layers: NodeLayers, broker_id: int) -> Slice:
    """Move partitions away from a broker whose disk is full, until it has space again.

    Partitions that no other broker could lead stay: they can be read.
    """

    def can_lead(other: int) -> bool:
        return other != broker_id and image.is_active(other)

    # This is asked with every heartbeat of a full broker, mostly when all is done or nothing can be.
    with_room = set(filter(can_lead, image.brokers)) - image.full_brokers
    if not with_room:
        return Slice([], is_last=True)

    def after(partition: Partition, rules: Rules) -> Partition:
        left = change(partition, [each for each in partition.isr if each != broker_id], rules, can_lead)
        return settled(partition, left, rules, can_lead)

    held = (
        each
        for each in _held_with_others(image, broker_id)
        if broker_id in each[2].isr and not with_room.isdisjoint(each[2].isr)
    )
    return _slice(image, layers, held, after)


def has_left(image: Image, broker_id: int) -> bool:
    """Whether it neither leads nor is in sync with any partition that others could lead."""
    return not any(
        partition.leader == broker_id or broker_id in partition.isr
        for _, _, partition in _held_with_others(image, broker_id)
    )


def lead_first(image: Image, layers: NodeLayers, broker_id: int) -> Slice:
    """Make this broker the leader of partitions whose preferred replica it is, if in sync."""

    def after(partition: Partition, rules: Rules) -> Partition:
        return change(partition, partition.isr, rules, image.is_active, prefer_first=True)

    held = (
        each
        for each in _held_with_others(image, broker_id)
        if each[2].replicas[0] == broker_id and each[2].leader != broker_id and broker_id in each[2].isr
    )
    return _slice(image, layers, held, after)


def _held_with_others(image: Image, broker_id: int) -> Iterator[tuple[Topic, int, Partition]]:
    return (
        each for each in image.partitions_of(broker_id) if len(each[2].replicas) > 1 or each[2].leader == NO_LEADER
    )


def _slice(
    image: Image,
    layers: NodeLayers,
    partitions: Iterable[tuple[Topic, int, Partition]],
    after: Callable[[Partition, Rules], Partition],
) -> Slice:
    rules = TopicRules(image, layers)
    records: list[Record] = []
    # Equal partitions change equally: of ten thousand there are a few dozen kinds.
    changes: dict[tuple[object, ...], PartitionChangeRecord | None] = {}
    for topic, index, before in partitions:
        rules_here = rules.of(topic.name)
        kind = rules_here, *_kind_of(before)
        if kind in changes:
            record = changes[kind]
        else:
            changed = after(before, rules_here)
            record = None if changed == before else change_record(topic.id, index, before, changed)
            changes[kind] = record
        if record is not None:
            if len(records) == SLICE:
                return Slice(records, is_last=False)
            records.append(record._replace(partition_id=index, topic_id=topic.id))
    return Slice(records, is_last=True)


_EPOCHS: Final = ("leader_epoch", "partition_epoch")
_kind_of: Final[Callable[[Partition], tuple[object, ...]]] = attrgetter(
    *(each for each in names_of(Partition) if each not in _EPOCHS)
)
"""Everything that determines the change: epochs are only incremented, whatever they are."""


def without_eligible_replicas(topics: Iterable[Topic]) -> Iterator[PartitionChangeRecord]:
    """Clear the ELRs after a change of `min.insync.replicas`: replicas are eligible by the old value only.

    Otherwise a replica that left the ISR would stay eligible while the leader, now sufficient alone, continues to
    commit. If the ISR is empty nothing is committed, and the eligible replicas are all that is left.
    """
    return (
        PartitionChangeRecord(index, topic.id, eligible_leader_replicas=())
        for topic in topics
        for index, partition in enumerate(topic.partitions)
        if partition.elr and partition.isr
    )


# AlterPartition.


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """One partition of an AlterPartition request."""

    topic_id: UUID
    index: int
    change: IsrChange


@dataclass(frozen=True, slots=True)
class IsrReply:
    """The result for one partition, and its current state."""

    topic_id: UUID
    index: int
    code: ErrorCode
    partition: Partition | None = None


def decide_alter_partitions(
    image: Image, layers: NodeLayers, broker_id: int, broker_epoch: int, requests: Sequence[IsrRequest]
) -> Decision[tuple[IsrReply, ...] | ErrorCode]:
    """One reply for each partition; one error code for all of them if the broker epoch is stale."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch or broker.fenced:
        # A fenced broker leads nothing, and must learn first that it is fenced.
        return Decision((), ErrorCode.STALE_BROKER_EPOCH)
    rules = TopicRules(image, layers)
    records: list[Record] = []
    replies = []
    named: set[tuple[UUID, int]] = set()
    for each in requests:
        topic = image.topics_by_id.get(each.topic_id)
        code = ErrorCode.NONE
        after: Partition | None = None
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not 0 <= each.index < len(topic.partitions):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif (each.topic_id, each.index) in named:
            code = ErrorCode.INVALID_REQUEST
        else:
            named.add((each.topic_id, each.index))
            before = topic.partitions[each.index]
            topic_rules = rules.of(topic.name)
            result = decide_isr_change(before, each.change, topic_rules, image.is_active, partial(_epoch_of, image))
            if isinstance(result, ErrorCode):
                code = result
            else:
                after = settled(before, result, topic_rules, image.is_active)
                if after != before:
                    records.append(change_record(topic.id, each.index, before, after))
        replies.append(IsrReply(each.topic_id, each.index, code, after))
    return Decision(tuple(records), tuple(replies))


def _epoch_of(image: Image, broker_id: int) -> int:
    broker = image.brokers.get(broker_id)
    return -2 if broker is None else broker.epoch


# ElectLeaders.


class ElectionType(IntEnum):
    """The kind of election, with the numbers of the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Elected:
    """The result for one partition."""

    topic: str
    index: int
    verdict: Verdict


def decide_elect_leaders(
    image: Image,
    layers: NodeLayers,
    kind: ElectionType,
    partitions: Iterable[tuple[str, int]],
    log_ends: LogEnds = MappingProxyType({}),
    *,
    changes_only: bool = False,
) -> Decision[tuple[Elected, ...]]:
    """One reply for each partition, or for each that changes. `log_ends` decides an unclean election."""
    rules = TopicRules(image, layers)
    records: list[Record] = []
    replies: dict[tuple[str, int], Elected] = {}
    for topic_name, index in partitions:
        if (topic_name, index) in replies:
            continue
        topic, before = image.topics.get(topic_name), image.partition(topic_name, index)
        if topic is None or before is None:
            if changes_only:
                continue
            unknown = f"unknown partition {topic_name}-{index}"
            verdict = Verdict.of(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown))
        else:
            if kind is ElectionType.PREFERRED:
                verdict, after = _elect_preferred(before, rules.of(topic_name), image.is_active)
            else:
                reported = log_ends.get((topic_name, index), {})
                verdict, after = _elect_unclean(image, before, rules.of(topic_name), reported)
            after = settled(before, after, rules.of(topic_name), image.is_active)
            if after != before:
                records.append(change_record(topic.id, index, before, after))
            elif changes_only:
                continue
        replies[topic_name, index] = Elected(topic_name, index, verdict)
    return Decision(tuple(records), tuple(replies.values()))


def _elect_preferred(before: Partition, rules: Rules, can_lead: CanLead) -> tuple[Verdict, Partition]:
    first = before.replicas[0]
    if before.leader == first:
        return Verdict(ErrorCode.ELECTION_NOT_NEEDED, f"broker {first} is already the leader"), before
    if first not in before.isr or not can_lead(first):
        return Verdict(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {first} is not active and in sync"), before
    return OK, change(before, before.isr, rules, can_lead, prefer_first=True)


def _elect_unclean(
    image: Image, before: Partition, rules: Rules, reported: Mapping[int, ReplicaLogEnd]
) -> tuple[Verdict, Partition]:
    if before.leader != NO_LEADER:
        return Verdict(ErrorCode.ELECTION_NOT_NEEDED, f"broker {before.leader} is the leader"), before
    after = change(before, before.isr, replace(rules, may_elect_unclean=False), image.is_active)
    if after.leader != NO_LEADER:
        return OK, after
    longest = longest_log(image, before, reported, image.is_active)
    if longest is not None:
        return OK, elect_unclean(before, longest)
    alive = [each for each in before.replicas if image.is_active(each)]
    why = f"none of the brokers {list(before.replicas)} is active"
    if alive:
        why = (
            f"none of the live replicas {alive} reported its log end offset: they did not answer in time, cannot "
            "open the log, or run an earlier version. Try again"
        )
    return Verdict(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, why), before
