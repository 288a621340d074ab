"""The current metadata: topics, partitions, settings, brokers, users. `Image.replay` alone changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, assert_never
from uuid import UUID

from millpond.base.ids import LeaderEpoch, NodeId
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass
from millpond.metadata.acls import Acls
from millpond.metadata.leadership import Leadership
from millpond.metadata.quotas import ClientQuotas
from millpond.metadata.records import (
    LEADER_UNCHANGED,
    RECOVERING,
    RECOVERY_UNCHANGED,
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from millpond.metadata.scram import ScramCredentials
from millpond.metadata.tokens import DelegationTokens

SHARE_STATE_TOPIC: Final = "__share_group_state"
COORDINATOR_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", SHARE_STATE_TOPIC})
"""The state of the coordinators; an external change would make them lose it."""

INTERNAL_TOPICS: Final = COORDINATOR_TOPICS | {"__group_history"}
"""Only the brokers create and write these."""

NOTHING_SET: Final[Mapping[str, str]] = MappingProxyType({})

CLUSTER_ID_NAME: Final = "cluster.id"
"""The cluster id is a setting of all brokers: no other record could hold it."""

RESCUE_NAME: Final = "cluster.rescue."
"""The prefix of the cluster-wide setting that records a rescue; its number follows."""


class Resource(NamedTuple):
    """The owner of a setting. A broker resource with an empty name means all brokers."""

    type: int
    name: str


NO_DIRECTORY: Final = UUID(int=0)
"""The data folder of a broker that did not report it."""

ALL_BROKERS: Final = Resource(ResourceType.BROKER, "")

ALIKE_MAX: Final = 4096
"""The most shared states of partitions."""


@dataclass(frozen=True, slots=True)
class Partition(Leadership):
    """The replicas and the leader of a partition."""

    leader: NodeId
    leader_epoch: LeaderEpoch


@lru_cache(ALIKE_MAX)
def _partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    is_recovering: bool,
    removing_replicas: tuple[int, ...],
    adding_replicas: tuple[int, ...],
) -> Partition:
    """Thousands of partitions are equal: they share one immutable value."""
    return Partition(
        replicas=replicas,
        isr=isr,
        leader=NodeId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=partition_epoch,
        elr=elr,
        last_known=last_known,
        is_recovering=is_recovering,
        removing_replicas=removing_replicas,
        adding_replicas=adding_replicas,
    )


@dataclass(slots=True)
class Topic:
    """A topic; the index in `partitions` is the partition's."""

    name: str
    id: UUID
    partitions: list[Partition] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether only the brokers write it; tools hide it by default."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Broker:
    id: NodeId
    incarnation_id: UUID
    epoch: int
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None
    fenced: bool
    in_shutdown: bool = False
    """It has requested a shutdown: it gives up its leaderships and gets no others."""
    directory_id: UUID = NO_DIRECTORY
    features: tuple[BrokerFeature, ...] = ()
    """The features it registered with; empty for versions that did not report them."""

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not self.fenced and not self.in_shutdown


@dataclass(slots=True)
class Image:
    """Read it freely; change it through `replay` only. Dicts keep the creation order."""

    topics: dict[str, Topic] = field(default_factory=dict)
    topics_by_id: dict[UUID, Topic] = field(default_factory=dict)
    configs: dict[Resource, dict[str, str]] = field(default_factory=dict)
    brokers: dict[int, Broker] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    quotas: ClientQuotas = field(default_factory=ClientQuotas)
    next_producer_id: int = 0
    scram: ScramCredentials = field(default_factory=ScramCredentials)
    tokens: DelegationTokens = field(default_factory=DelegationTokens)
    acls: Acls = field(default_factory=Acls)
    partitions_total: int = 0
    full_brokers: frozenset[int] = field(default=frozenset(), compare=False)
    """Brokers whose disks are full, as reported to the active controller and by it to others: in no record."""
    topics_version: int = field(default=0, compare=False)
    """Rises with every topic that is created or deleted."""
    _names_by_sound: dict[str, dict[str, None]] = field(default_factory=dict)
    _held: dict[int, dict[UUID, set[int]]] = field(default_factory=dict)
    """The partitions of each broker's replicas, by topic."""
    _moving: dict[tuple[UUID, int], None] = field(default_factory=dict)

    # Reading.

    @property
    def cluster_id(self) -> str | None:
        return self.config_of(ALL_BROKERS).get(CLUSTER_ID_NAME)

    @property
    def rescues(self) -> int:
        """How often the cluster was rescued from its surviving nodes."""
        return sum(name.startswith(RESCUE_NAME) for name in self.config_of(ALL_BROKERS))

    def config_of(self, resource: Resource) -> Mapping[str, str]:
        """The settings of the resource, as text."""
        return self.configs.get(resource, NOTHING_SET)

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.config_of(Resource(ResourceType.TOPIC, name))

    def partition(self, topic: str, partition: int) -> Partition | None:
        named = self.topics.get(topic)
        return named.partitions[partition] if named and 0 <= partition < len(named.partitions) else None

    def partitions_of(self, node_id: int) -> Iterator[tuple[Topic, int, Partition]]:
        """All partitions with a replica on this node. Takes time proportional to them."""
        for topic_id, indexes in self._held.get(node_id, {}).items():
            topic = self.topics_by_id[topic_id]
            for index in sorted(indexes):
                yield topic, index, topic.partitions[index]

    def replica_count(self, node_id: int) -> int:
        """The number of replicas on this node. Takes time proportional to their topics."""
        return sum(map(len, self._held.get(node_id, {}).values()))

    def moving(self) -> Iterator[tuple[Topic, int, Partition]]:
        """All partitions that are being reassigned."""
        for topic_id, index in self._moving:
            topic = self.topics_by_id[topic_id]
            yield topic, index, topic.partitions[index]

    def is_active(self, node_id: int) -> bool:
        """Whether a broker may lead and be in sync: registered, unfenced and not shutting down."""
        broker = self.brokers.get(node_id)
        return broker is not None and broker.is_active

    def namesakes(self, name: str) -> tuple[str, ...]:
        """Topics whose names differ from `name` at most in '.' versus '_'."""
        return tuple(self._names_by_sound.get(sound_of(name), ()))

    def copy(self) -> Image:
        """An independent image with the same content."""
        topics = {name: Topic(name, topic.id, list(topic.partitions)) for name, topic in self.topics.items()}
        return Image(
            topics=topics,
            topics_by_id={topic.id: topic for topic in topics.values()},
            configs={resource: dict(config) for resource, config in self.configs.items()},
            brokers=dict(self.brokers),
            features=dict(self.features),
            quotas=self.quotas.copy(),
            next_producer_id=self.next_producer_id,
            scram=self.scram.copy(),
            tokens=self.tokens.copy(),
            acls=self.acls.copy(),
            partitions_total=self.partitions_total,
            full_brokers=self.full_brokers,
            topics_version=self.topics_version,
            _names_by_sound={sound: dict(names) for sound, names in self._names_by_sound.items()},
            _held={
                node_id: {topic_id: set(indexes) for topic_id, indexes in held.items()}
                for node_id, held in self._held.items()
            },
            _moving=dict(self._moving),
        )

    def become(self, other: Image) -> None:
        """Take over the content of another image, which must not be used any longer: a snapshot was loaded."""
        for name in (each.name for each in fields(self)):
            setattr(self, name, getattr(other, name))

    # Changing.

    def replay_all(self, records: Sequence[Record]) -> None:
        """The same for many, in order."""
        left = iter(records)
        for record in left:
            after: Record | None = record
            while isinstance(after, PartitionRecord):
                # A topic's partitions are consecutive, and there may be thousands of them.
                after = self._add_partitions(after, left)
            if after is not None:
                self.replay(after)

    def replay(self, record: Record) -> None:
        """Apply a committed record."""
        match record:
            case TopicRecord():
                self._add_topic(record)
            case PartitionRecord():
                self._add_partitions(record, iter(()))
            case PartitionChangeRecord():
                self._change_partition(record)
            case LeadAnewRecord():
                self._lead_anew(record.broker_id)
            case RemoveTopicRecord():
                self._remove_topic(record)
            case ConfigRecord():
                self._set_config(record)
            case FeatureLevelRecord():
                self._set_feature(record)
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case RegisterBrokerRecord():
                self._add_broker(record)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case UnregisterBrokerRecord():
                del self.brokers[record.broker_id]
            case ClientQuotaRecord():
                self.quotas.replay(record)
            case UserScramCredentialRecord() | RemoveUserScramCredentialRecord():
                self.scram.replay(record)
            case DelegationTokenRecord() | RemoveDelegationTokenRecord():
                self.tokens.replay(record)
            case AccessControlEntryRecord() | RemoveAccessControlEntryRecord():
                self.acls.replay(record)
            case NoOpRecord():
                pass
            case _:
                assert_never(record)

    def _add_topic(self, record: TopicRecord) -> None:
        assert record.name not in self.topics, record
        topic = Topic(record.name, record.topic_id)
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        self.topics_version += 1
        self._names_by_sound.setdefault(sound_of(topic.name), {})[topic.name] = None

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self.topics_by_id.pop(record.topic_id)
        del self.topics[topic.name]
        self.topics_version += 1
        self.configs.pop(Resource(ResourceType.TOPIC, topic.name), None)
        self.partitions_total -= len(topic.partitions)
        for node_id in {each for partition in topic.partitions for each in partition.replicas}:
            self._forget_held(node_id, topic.id, range(len(topic.partitions)))
        for index in range(len(topic.partitions) if self._moving else 0):
            self._moving.pop((topic.id, index), None)
        namesakes = self._names_by_sound[sound_of(topic.name)]
        del namesakes[topic.name]
        if not namesakes:
            del self._names_by_sound[sound_of(topic.name)]

    def _add_partitions(self, first: PartitionRecord, following: Iterator[Record]) -> Record | None:
        """Add consecutive partitions of one topic; the record after them."""
        topic_id = first.topic_id
        partitions = self.topics_by_id[topic_id].partitions
        held: dict[int, set[int]] = {}
        record: Record | None = first
        while isinstance(record, PartitionRecord) and (record.topic_id is topic_id or record.topic_id == topic_id):
            self._add_partition(record, partitions)
            for node_id in record.replicas:
                indexes = held.get(node_id)
                if indexes is None:
                    indexes = held[node_id] = self._held.setdefault(node_id, {}).setdefault(topic_id, set())
                indexes.add(record.partition_id)
            record = next(following, None)
        return record

    def _add_partition(self, record: PartitionRecord, partitions: list[Partition]) -> None:
        assert record.partition_id == len(partitions), record
        partitions.append(
            _partition(
                record.replicas,
                record.isr,
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
                record.eligible_leader_replicas or (),
                record.last_known_elr or (),
                record.leader_recovery_state == RECOVERING,
                record.removing_replicas,
                record.adding_replicas,
            )
        )
        self.partitions_total += 1
        if record.adding_replicas or record.removing_replicas:
            self._moving[record.topic_id, record.partition_id] = None

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self.topics_by_id[record.topic_id].partitions
        old = partitions[record.partition_id]
        led_anew = record.leader != LEADER_UNCHANGED
        partitions[record.partition_id] = _partition(
            old.replicas if record.replicas is None else record.replicas,
            old.isr if record.isr is None else record.isr,
            record.leader if led_anew else old.leader,
            old.leader_epoch + led_anew,
            old.partition_epoch + 1,
            old.elr if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
            old.last_known if record.last_known_elr is None else record.last_known_elr,
            old.is_recovering
            if record.leader_recovery_state == RECOVERY_UNCHANGED
            else record.leader_recovery_state == RECOVERING,
            old.removing_replicas if record.removing_replicas is None else record.removing_replicas,
            old.adding_replicas if record.adding_replicas is None else record.adding_replicas,
        )
        if record.adding_replicas is not None or record.removing_replicas is not None:
            now = partitions[record.partition_id]
            if now.adding_replicas or now.removing_replicas:
                self._moving[record.topic_id, record.partition_id] = None
            else:
                self._moving.pop((record.topic_id, record.partition_id), None)
        if record.replicas is not None:
            for node_id in set(old.replicas) - set(record.replicas):
                self._forget_held(node_id, record.topic_id, (record.partition_id,))
            for node_id in record.replicas:
                self._add_held(node_id, record.topic_id, record.partition_id)

    def _lead_anew(self, broker_id: int) -> None:
        """Begin a new leader epoch for all partitions that it leads. Every restart has done so, and nearly all are
        equal."""
        renewed: dict[int, tuple[Partition, Partition]] = {}
        for topic_id, indexes in self._held.get(broker_id, {}).items():
            partitions = self.topics_by_id[topic_id].partitions
            for index in indexes:
                old = partitions[index]
                if old.leader != broker_id:
                    continue
                # Compare by identity, which is faster than hashing and valid while the old partition is kept with the
                # new.
                both = renewed.get(id(old))
                if both is None:
                    self._change_partition(PartitionChangeRecord(index, topic_id, leader=broker_id))
                    renewed[id(old)] = old, partitions[index]
                else:
                    partitions[index] = both[1]

    def _add_held(self, node_id: int, topic_id: UUID, index: int) -> None:
        self._held.setdefault(node_id, {}).setdefault(topic_id, set()).add(index)

    def _forget_held(self, node_id: int, topic_id: UUID, indexes: Iterable[int]) -> None:
        held = self._held[node_id]
        held[topic_id].difference_update(indexes)
        if not held[topic_id]:
            del held[topic_id]
            if not held:
                del self._held[node_id]

    def _set_config(self, record: ConfigRecord) -> None:
        resource = Resource(record.resource_type, record.resource_name)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
        elif resource in self.configs:
            self.configs[resource].pop(record.name, None)
            if not self.configs[resource]:
                del self.configs[resource]

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _add_broker(self, record: RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = Broker(
            id=NodeId(record.broker_id),
            incarnation_id=record.incarnation_id,
            epoch=record.broker_epoch,
            end_points=record.end_points,
            rack=record.rack,
            fenced=record.fenced,
            in_shutdown=record.in_controlled_shutdown,
            directory_id=record.log_dirs[0] if record.log_dirs else NO_DIRECTORY,
            features=record.features,
        )

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self.brokers[record.broker_id]
        self.brokers[record.broker_id] = replace(
            broker,
            fenced=record.fenced > 0 if record.fenced else broker.fenced,
            in_shutdown=record.in_controlled_shutdown > 0 if record.in_controlled_shutdown else broker.in_shutdown,
        )


def sound_of(topic_name: str) -> str:
    """Topics whose names collide must not coexist: metrics write both '.' and '_' as '_'."""
    return topic_name.replace(".", "_")
