"""Plans a rescue: the new metadata, and what would be lost. Works on values only and writes nothing.

Lost nodes are removed by the same decisions as if each had been unregistered. A partition with a surviving replica in
the ISR or ELR continues with it. Other partitions stay offline unless the operator asks for an unclean leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final
from uuid import UUID

from millpond.base.values import dataclass
from millpond.broker.rescue.survivor import CannotRescue, Held, Survivor
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.elections import Slice, come_back, leave
from millpond.metadata.image import ALL_BROKERS, RESCUE_NAME, Image, Partition, Topic
from millpond.metadata.leadership import NO_LEADER, Loss
from millpond.metadata.records import (
    RECOVERED,
    RECOVERING,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    UnregisterBrokerRecord,
)
from millpond.metadata.snapshot import records_of

OFFSETS_AHEAD: Final = 1_000_000
"""The new log starts this far after the end of the survivor's: a broker epoch, which is an offset, must not be
reused."""

EPOCHS_AHEAD: Final = 1_000
"""How much the epochs of the quorum and of partitions are raised: lost nodes may have raised them, and clients may
have seen the higher epochs."""

PRODUCER_IDS_AHEAD: Final = 1_000_000


class Fate(Enum):
    """The outcome of the rescue for a partition."""

    KEPT = "kept"
    """Led by a replica that has all acknowledged records, according to the metadata."""
    BEHIND = "offline"
    """Only replicas that lack records have survived; it stays offline."""
    LED_BEHIND = "unclean"
    """The same, but led by the replica with the longest log."""
    LOST = "lost"
    """No replica has survived; it stays offline."""
    RESTORED = "restored"
    """Led by the replica with the longest log: the folders are backups taken at different times."""
    EMPTIED = "emptied"
    """The same, but recreated empty."""


@dataclass(frozen=True, slots=True)
class PartitionFate:
    topic: str
    index: int
    fate: Fate
    leader: int
    was_in_sync: tuple[int, ...]
    has: Held | None
    """What the best surviving replica has; None if its folder was not read."""
    is_internal: bool

    @property
    def missing_min(self) -> int:
        """A lower bound for the number of committed offsets that it lacks."""
        return max(self.has.high_watermark - self.has.end_offset, 0) if self.has is not None else 0


@dataclass(frozen=True, slots=True)
class Wish:
    """The operator's decisions about partitions without a replica in sync."""

    unclean: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    drops_lost: bool = False
    """Whether replicas on lost nodes are removed from partitions, instead of waiting for replacements."""
    is_restored: bool = False
    """Whether the folders are backups: then the ISR means nothing, and the longest log leads."""


@dataclass(frozen=True, slots=True)
class Plan:
    source: Survivor
    """The survivor whose metadata the new quorum continues with."""
    survivors: tuple[int, ...]
    lost: tuple[int, ...]
    voters: tuple[int, ...]
    """The voters of the new quorum."""
    partitions: tuple[PartitionFate, ...]
    image: Image
    epoch: int
    end_offset: int
    rescues: int
    marks: Mapping[tuple[UUID, int], int]
    """The new high watermarks: everything that all of the remaining ISR has counts as committed. Without them,
    consumers could not read it until `min.insync.replicas` replicas are back in sync."""

    @property
    def uncertain(self) -> int:
        """How many offsets of the metadata log are used without knowing whether they were committed."""
        return self.source.end_offset - self.source.committed_offset

    def count(self, fate: Fate) -> int:
        return sum(each.fate is fate for each in self.partitions)

    def records(self) -> Iterator[Record]:
        """The metadata that the new quorum starts with."""
        for record in records_of(self.image):
            if isinstance(record, PartitionRecord):
                yield record._replace(leader_epoch=record.leader_epoch + EPOCHS_AHEAD)
            else:
                yield record


def choose_source(survivors: Sequence[Survivor], node_id: int | None = None) -> Survivor:
    """The survivor with the most recent metadata, or the requested one."""
    first = survivors[0]
    for other in survivors[1:]:
        if other.identity.cluster_id != first.identity.cluster_id:
            raise CannotRescue(
                f"{first.folder} and {other.folder} are of two clusters, {first.identity.cluster_id} and "
                f"{other.identity.cluster_id}: name folders of one"
            )
        if other.node_id in [each.node_id for each in survivors if each is not other]:
            raise CannotRescue(f"two folders are of node {other.node_id}: name the one that it was last started with")
    newest = [each for each in survivors if each.identity.rescues == max(one.identity.rescues for one in survivors)]
    if node_id is None:
        return max(newest, key=lambda each: each.rank)
    for each in survivors:
        if each.node_id == node_id:
            if each not in newest:
                raise CannotRescue(f"{each.folder} was left behind by an earlier rescue: it cannot be gone on with")
            return each
    raise CannotRescue(f"--from {node_id}: none of the folders is that of node {node_id}")


def plan_rescue(
    survivors: Sequence[Survivor],
    source: Survivor,
    now_text: str,
    *,
    elsewhere: Collection[int] = (),
    wish: Wish | None = None,
) -> Plan:
    """`elsewhere` are surviving nodes whose folders are on other machines and were not read."""
    wish = wish or Wish()
    before = source.image
    alive = {each.node_id for each in survivors if each.identity.rescues == source.identity.rescues} | set(elsewhere)
    unknown = sorted(alive - before.brokers.keys())
    if unknown:
        raise CannotRescue(f"node {unknown[0]} is none of the cluster's; it has {_names(before.brokers)}")
    voters = [each for each in source.voters if each in alive]
    if len(voters) > len(source.voters) // 2 and not wish.is_restored:
        raise CannotRescue(
            f"{len(voters)} of the {len(source.voters)} voters are here, a majority: start them, and nothing is lost"
        )
    for name in sorted(wish.unclean | wish.empty):
        if name not in before.topics:
            raise CannotRescue(f"there is no topic {name} in the metadata of node {source.node_id}")
    lost = tuple(sorted((before.brokers.keys() | set(source.voters)) - alive))
    image = before.copy()
    layers = _layers(before, source.node_id)
    _let_go(image, layers, lost, alive)
    ends = {each.node_id: each.replicas for each in survivors}
    fates = []
    for topic in list(image.topics.values()):
        old = before.topics[topic.name]
        for index in range(len(topic.partitions)):
            fates.append(_settle(image, topic, index, old.partitions[index], alive, ends, wish))
            if wish.drops_lost:
                _drop_lost(image, topic, index, alive)
    rescues = source.identity.rescues + 1
    epoch = max([source.last_epoch, *(each.election.epoch for each in survivors)]) + EPOCHS_AHEAD
    summary = (
        f"{now_text}: node {source.node_id} and its metadata up to offset {source.end_offset} of epoch "
        f"{source.last_epoch}; lost nodes {_names(lost) or 'none'}"
    )
    for kind in (Fate.LED_BEHIND, Fate.RESTORED, Fate.EMPTIED):
        if topics := sorted({each.topic for each in fates if each.fate is kind}):
            summary += f"; {kind.value}: {', '.join(topics)}"[:1000]
    image.replay(ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, f"{RESCUE_NAME}{rescues}", summary))
    image.replay(ProducerIdsRecord(-1, -1, image.next_producer_id + PRODUCER_IDS_AHEAD))
    return Plan(
        source=source,
        survivors=tuple(sorted(alive)),
        lost=lost,
        voters=tuple(voters) or tuple(sorted(alive)),
        partitions=tuple(fates),
        image=image,
        epoch=epoch,
        end_offset=source.end_offset + OFFSETS_AHEAD,
        rescues=rescues,
        marks=dict(_marks(image, ends)),
    )


def _marks(
    image: Image, ends: Mapping[int, Mapping[tuple[UUID, int], Held]]
) -> Iterator[tuple[tuple[UUID, int], int]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            held = [ends.get(each, {}).get((topic.id, index)) for each in partition.isr]
            known = [each.end_offset for each in held if each is not None]
            if known and len(known) == len(held) and partition.leader != NO_LEADER:
                yield (topic.id, index), min(known)


def _names(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))


def _layers(image: Image, node_id: int) -> NodeLayers:
    """The default settings of a node in such a cluster."""
    ids = {*image.brokers, node_id}
    nodes = ",".join(f"{each}@10.0.0.1:{each + 1}" for each in sorted(ids)) if len(ids) > 1 else ""
    return NodeLayers(
        node_settings({"node.id": str(node_id), "cluster.nodes": nodes}), {}, image.config_of(ALL_BROKERS)
    )


def _let_go(image: Image, layers: NodeLayers, lost: Collection[int], alive: Collection[int]) -> None:
    """Fence all lost nodes first, so that none is elected when their partitions get new leaders; then remove them."""
    for broker in list(image.brokers.values()):
        is_lost = broker.id in lost
        image.replay(
            BrokerRegistrationChangeRecord(
                broker.id, broker.epoch, fenced=1 if is_lost else -1, in_controlled_shutdown=-1
            )
        )
    for node_id in lost:
        _all_slices(image, lambda node_id=node_id: leave(image, layers, node_id, Loss.ALL))  # type: ignore[misc]
        for topic, index, partition in list(image.partitions_of(node_id)):
            if len(partition.replicas) == 1 and partition.leader == node_id:
                # Otherwise a new node with this id and an empty disk would lead it, and the loss would go unnoticed.
                image.replay(PartitionChangeRecord(index, topic.id, isr=(), leader=NO_LEADER))
        broker_or_none = image.brokers.get(node_id)
        if broker_or_none is not None:
            image.replay(UnregisterBrokerRecord(node_id, broker_or_none.epoch))
    for node_id in alive:
        _all_slices(image, lambda node_id=node_id: come_back(image, layers, node_id))  # type: ignore[misc]


def _all_slices(image: Image, decide: Callable[[], Slice]) -> None:
    is_last = False
    while not is_last:
        records, is_last = decide()
        image.replay_all(records)


def _settle(
    image: Image,
    topic: Topic,
    index: int,
    before: Partition,
    alive: Collection[int],
    ends: Mapping[int, Mapping[tuple[UUID, int], Held]],
    wish: Wish,
) -> PartitionFate:
    def has(node_id: int) -> Held | None:
        return ends.get(node_id, {}).get((topic.id, index))

    def rank(node_id: int) -> tuple[int, int]:
        held = has(node_id)
        return (held.last_epoch, held.end_offset) if held is not None else (-2, -1)

    def fate(kind: Fate, leader: int, best: Held | None) -> PartitionFate:
        in_sync = before.isr or before.elr or before.last_known
        return PartitionFate(topic.name, index, kind, leader, in_sync, best, topic.is_internal)

    now = topic.partitions[index]
    if wish.is_restored:
        holders = [each for each in now.replicas if each in alive and has(each) is not None]
        if holders:
            best = max(holders, key=rank)
            image.replay(_led_by(best, topic, index))
            if now.replicas == (best,):
                # No other replica could have more records, so there is nothing to recover from.
                image.replay(PartitionChangeRecord(index, topic.id, leader_recovery_state=RECOVERED))
            return fate(Fate.RESTORED, best, has(best))
    if now.leader != NO_LEADER:
        was_trusted = now.leader in before.isr or now.leader in before.elr
        return fate(Fate.KEPT if was_trusted else Fate.LED_BEHIND, now.leader, has(now.leader))
    replicas = [each for each in now.replicas if each in alive]
    if replicas:
        # On a tie the first: replicas are in order of preference.
        best = max(replicas, key=rank)
        if topic.name not in wish.unclean:
            return fate(Fate.BEHIND, NO_LEADER, has(best))
        image.replay(_led_by(best, topic, index))
        return fate(Fate.LED_BEHIND, best, has(best))
    if topic.name not in wish.empty:
        return fate(Fate.LOST, NO_LEADER, None)
    chosen = sorted(alive)[index % len(alive)]
    image.replay(
        PartitionChangeRecord(
            index,
            topic.id,
            isr=(chosen,),
            leader=chosen,
            replicas=(chosen,),
            removing_replicas=(),
            adding_replicas=(),
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
    )
    return fate(Fate.EMPTIED, chosen, None)


def _led_by(node_id: int, topic: Topic, index: int) -> PartitionChangeRecord:
    """Elects this node uncleanly: records that it lacks are lost."""
    return PartitionChangeRecord(
        index,
        topic.id,
        isr=(node_id,),
        leader=node_id,
        leader_recovery_state=RECOVERING,
        eligible_leader_replicas=(),
        last_known_elr=(),
    )


def _drop_lost(image: Image, topic: Topic, index: int, alive: Collection[int]) -> None:
    now = topic.partitions[index]
    replicas = tuple(each for each in now.replicas if each in alive)
    if replicas and replicas != now.replicas:
        image.replay(
            PartitionChangeRecord(
                index,
                topic.id,
                replicas=replicas,
                removing_replicas=tuple(each for each in now.removing_replicas if each in replicas),
                adding_replicas=tuple(each for each in now.adding_replicas if each in replicas),
            )
        )
