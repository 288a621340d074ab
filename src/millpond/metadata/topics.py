"""CreateTopics, DeleteTopics and CreatePartitions.

Each topic of a request has its own result; a refused one does not affect the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ids import NO_TOPIC_ID, topic_name_fault
from millpond.base.ports import Entropy
from millpond.base.settings import Settings
from millpond.base.values import dataclass
from millpond.base.words import counted, quoted
from millpond.config.effective import NodeLayers
from millpond.config.node import (
    DELETE_TOPIC_ENABLE,
    MAX_PARTITIONS,
    MAX_PARTITIONS_PER_TOPIC,
    NUM_PARTITIONS,
    default_replicas,
)
from millpond.config.topic import MIN_INSYNC_REPLICAS
from millpond.metadata.configs import topic_config_records
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.image import INTERNAL_TOPICS, Image, Topic, sound_of
from millpond.metadata.leadership import Rules
from millpond.metadata.moves import target_of
from millpond.metadata.placement import place, takers
from millpond.metadata.records import ConfigRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord

METADATA_TOPIC: Final = "__cluster_metadata"
"""The name of the metadata log's folder; a topic of this name would share it."""

REPLICATION_FACTOR_MAX: Final = 32767

_INTERNAL_SOUNDS: Final = {sound_of(name): name for name in INTERNAL_TOPICS}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A requested topic; -1 leaves a number to the broker, `assignments` gives replicas by partition."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The result for a requested topic; without an id if it was refused or only validated."""

    name: str
    verdict: Verdict
    topic_id: UUID = NO_TOPIC_ID
    num_partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic by name or by id, one of the two."""

    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    name: str | None
    topic_id: UUID
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic that gets `count` partitions in total; `assignments` gives the replicas of the new ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class GrownTopic:
    name: str
    verdict: Verdict


def decide_create_topics(
    image: Image,
    layers: NodeLayers,
    topics: Sequence[NewTopic],
    entropy: Entropy,
    *,
    validate_only: bool = False,
    by_broker: bool = False,
) -> Decision[tuple[CreatedTopic, ...]]:
    """One reply for each name, in the order in which the request first names them.

    `by_broker` allows internal topics, which clients may not create: as ordinary topics they would lose records to
    retention.
    """
    times_named = Counter(topic.name for topic in topics)
    sounds: dict[str, str] = {}
    partitions_total = image.partitions_total
    records: list[Record] = []
    created: dict[str, CreatedTopic] = {}
    for new_topic in topics:
        try:
            if times_named[new_topic.name] > 1:
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"topic {quoted(new_topic.name)} appears more than once in the request"
                )
            _check_new_name(image, new_topic.name, sounds, by_broker)
            config_records = topic_config_records(new_topic.name, new_topic.configs, layers)
            replicas = _replicas_of_new_topic(image, layers.static, new_topic, partitions_total, entropy)
        except Refused as refused:
            created[new_topic.name] = CreatedTopic(new_topic.name, Verdict.of(refused))
            continue
        topic_id = NO_TOPIC_ID if validate_only else entropy.uuid()
        partitions_total += len(replicas)
        sounds[sound_of(new_topic.name)] = new_topic.name
        records += [
            TopicRecord(new_topic.name, topic_id),
            *config_records,
            *_partition_records(image, topic_id, 0, replicas, _min_isr(layers, config_records)),
        ]
        created[new_topic.name] = CreatedTopic(new_topic.name, OK, topic_id, len(replicas), len(replicas[0]))
    return Decision(() if validate_only else tuple(records), tuple(created.values()))


def decide_delete_topics(
    image: Image, layers: NodeLayers, refs: Sequence[TopicRef]
) -> Decision[tuple[DeletedTopic, ...]]:
    """One reply for each topic that the request names, by name or by id."""
    topics = [_find(image, ref) for ref in refs]
    times_named = Counter(topic.id for topic in topics if isinstance(topic, Topic))
    records: list[Record] = []
    replies: dict[TopicRef | UUID, DeletedTopic] = {}
    for ref, topic in zip(refs, topics, strict=True):
        if isinstance(topic, Refused):
            replies[ref] = DeletedTopic(ref.name, ref.topic_id, Verdict.of(topic))
        elif topic.is_internal:
            refused = Verdict(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic")
            replies[topic.id] = DeletedTopic(ref.name, ref.topic_id, refused)
        elif not layers.static[DELETE_TOPIC_ENABLE]:
            refused = Verdict(
                ErrorCode.TOPIC_DELETION_DISABLED, f"{DELETE_TOPIC_ENABLE.name} is false on this broker"
            )
            replies[topic.id] = DeletedTopic(ref.name, ref.topic_id, refused)
        elif times_named[topic.id] > 1:
            refused = Verdict(ErrorCode.INVALID_REQUEST, f"topic {topic.name} appears more than once in the request")
            replies[topic.id] = DeletedTopic(ref.name, ref.topic_id, refused)
        else:
            records.append(RemoveTopicRecord(topic.id))
            replies[topic.id] = DeletedTopic(topic.name, topic.id, OK)
    return Decision(tuple(records), tuple(replies.values()))


def decide_create_partitions(
    image: Image,
    layers: NodeLayers,
    topics: Sequence[MorePartitions],
    entropy: Entropy,
    *,
    validate_only: bool = False,
) -> Decision[tuple[GrownTopic, ...]]:
    """One reply for each name, in the order in which the request first names them."""
    times_named = Counter(topic.name for topic in topics)
    partitions_total = image.partitions_total
    records: list[Record] = []
    grown: dict[str, GrownTopic] = {}
    for request in topics:
        try:
            if times_named[request.name] > 1:
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"topic {quoted(request.name)} appears more than once in the request"
                )
            topic = image.topics.get(request.name)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {quoted(request.name)} does not exist")
            if topic.is_internal:
                raise Refused(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"the number of partitions of {topic.name} cannot change: its records would be "
                    "looked up in the wrong partitions",
                )
            replicas = _replicas_of_more_partitions(image, layers.static, topic, request, partitions_total, entropy)
        except Refused as refused:
            grown[request.name] = GrownTopic(request.name, Verdict.of(refused))
            continue
        partitions_total += len(replicas)
        min_isr = layers.topic_settings(image.topic_config(topic.name))[MIN_INSYNC_REPLICAS]
        records += _partition_records(image, topic.id, len(topic.partitions), replicas, min_isr)
        grown[request.name] = GrownTopic(request.name, OK)
    return Decision(() if validate_only else tuple(records), tuple(grown.values()))


def unknown_topic(name: str) -> Refused:
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {quoted(name)} does not exist")


def unknown_topic_id(topic_id: UUID) -> Refused:
    return Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has id {topic_id}")


def _find(image: Image, ref: TopicRef) -> Topic | Refused:
    """The topic to delete, or why there is none."""
    if (ref.name is None) == (ref.topic_id == NO_TOPIC_ID):
        return Refused(ErrorCode.INVALID_REQUEST, "give either the topic's name or its id")
    if ref.name is not None:
        return image.topics.get(ref.name, unknown_topic(ref.name))
    return image.topics_by_id.get(ref.topic_id, unknown_topic_id(ref.topic_id))


def _check_new_name(image: Image, name: str, sounds: dict[str, str], by_broker: bool) -> None:
    if fault := topic_name_fault(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name == METADATA_TOPIC:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{METADATA_TOPIC} is the metadata log of the cluster")
    if name in image.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    if name in INTERNAL_TOPICS and not by_broker:
        raise internal_topic_refused(name)
    namesake = next(iter(image.namesakes(name)), sounds.get(sound_of(name)))
    if namesake is None and name not in INTERNAL_TOPICS:
        # Even if the internal topic does not exist yet: the brokers could not create it beside this one.
        namesake = _INTERNAL_SOUNDS.get(sound_of(name))
    if namesake is not None:
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} collides with topic {namesake!r}: metric names do not distinguish '.' and '_'",
        )


def internal_topic_refused(name: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"{name} is an internal topic, which brokers create when it is first needed",
    )


Replicas = list[tuple[int, ...]]
"""The replicas of new partitions in order, each with its leader first."""


def _replicas_of_new_topic(
    image: Image, static: Settings, new_topic: NewTopic, partitions_total: int, entropy: Entropy
) -> Replicas:
    if new_topic.assignments:
        if new_topic.num_partitions != -1 or new_topic.replication_factor != -1:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "with a manual assignment, the number of partitions and the replication factor must be -1",
            )
        _check_count(static, len(new_topic.assignments), len(new_topic.assignments), partitions_total)
        return _assigned(image, new_topic.assignments)
    if new_topic.replication_factor < -1 or new_topic.replication_factor == 0:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1, or -1 for the default"
        )
    if new_topic.num_partitions < -1 or new_topic.num_partitions == 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS, "the number of partitions must be at least 1, or -1 for the default"
        )
    count = static[NUM_PARTITIONS] if new_topic.num_partitions == -1 else new_topic.num_partitions
    is_unsaid = new_topic.replication_factor == -1
    factor = default_replicas(static, len(image.brokers)) if is_unsaid else new_topic.replication_factor
    _check_count(static, count, count, partitions_total)
    return place(takers(image, factor), count, factor, entropy)


def _replicas_of_more_partitions(
    image: Image, static: Settings, topic: Topic, request: MorePartitions, partitions_total: int, entropy: Entropy
) -> Replicas:
    now = len(topic.partitions)
    added = request.count - now
    if added <= 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {counted(now, 'partition')}; the new number {request.count} must be larger",
        )
    _check_count(static, request.count, added, partitions_total)
    factor = len(target_of(topic.partitions[0]))
    if request.assignments is None:
        return place(takers(image, factor), added, factor, entropy)
    if len(request.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions are added, but the request has {len(request.assignments)} assignments",
        )
    for replicas in request.assignments:
        _check_replicas(image, replicas, factor)
    return list(request.assignments)


def _check_count(static: Settings, in_topic: int, added: int, in_cluster: int) -> None:
    """Limits first: the number of partitions determines how much is allocated."""
    if in_topic > static[MAX_PARTITIONS_PER_TOPIC]:
        most = static[MAX_PARTITIONS_PER_TOPIC]
        raise LimitMet(
            ErrorCode.POLICY_VIOLATION,
            MAX_PARTITIONS_PER_TOPIC.name,
            most,
            f"{in_topic} partitions exceed {MAX_PARTITIONS_PER_TOPIC.name}={most}",
        )
    if in_cluster + added > static[MAX_PARTITIONS]:
        most = static[MAX_PARTITIONS]
        raise LimitMet(
            ErrorCode.POLICY_VIOLATION,
            MAX_PARTITIONS.name,
            most,
            f"{added} more partitions would make {in_cluster + added} in the cluster, but "
            f"{MAX_PARTITIONS.name}={most}",
        )


def _assigned(image: Image, assignments: Iterable[tuple[int, tuple[int, ...]]]) -> Replicas:
    """A manual assignment, checked and in the order of the partitions."""
    by_number: dict[int, tuple[int, ...]] = {}
    for number, replicas in assignments:
        if number in by_number:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {number} is assigned more than once")
        factor = len(next(iter(by_number.values()), replicas))
        _check_replicas(image, replicas, factor)
        by_number[number] = replicas
    if by_number.keys() != set(range(len(by_number))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered consecutively from 0")
    return [by_number[number] for number in range(len(by_number))]


def _check_replicas(image: Image, replicas: tuple[int, ...], factor: int) -> None:
    fault = None
    if not replicas:
        fault = "a partition needs at least one replica"
    elif len(replicas) > REPLICATION_FACTOR_MAX:
        fault = f"a partition may have at most {REPLICATION_FACTOR_MAX} replicas"
    elif len(set(replicas)) < len(replicas):
        fault = f"duplicate broker in the replicas of a partition: {list(replicas)}"
    elif unknown := [node for node in replicas if node not in image.brokers]:
        fault = f"unknown broker {unknown[0]}"
    elif len(replicas) != factor:
        fault = f"all partitions must have the same number of replicas: {len(replicas)} here, {factor} elsewhere"
    elif not any(map(image.is_active, replicas)):
        fault = f"none of the brokers {list(replicas)} is active"
    if fault:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _min_isr(layers: NodeLayers, own: Iterable[ConfigRecord]) -> int:
    """`min.insync.replicas` of a new topic with these settings."""
    return layers.topic_settings({each.name: each.value for each in own if each.value is not None})[
        MIN_INSYNC_REPLICAS
    ]


def _partition_records(
    image: Image, topic_id: UUID, first: int, placed: Replicas, min_isr: int
) -> list[PartitionRecord]:
    records = []
    cache: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...] | None]] = {}
    for number, replicas in enumerate(placed, first):
        if replicas not in cache:
            cache[replicas] = _first_isr_and_elr(image, replicas, min_isr)
        isr, elr = cache[replicas]
        records.append(PartitionRecord(number, topic_id, replicas, isr, leader=isr[0], eligible_leader_replicas=elr))
    return records


def _first_isr_and_elr(
    image: Image, replicas: tuple[int, ...], min_isr: int
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The first ISR and ELR of a new partition.

    No replica has a record yet. While too few are in sync to commit one, the others lack nothing, and any of them can
    lead if the ISR is lost. The ISR may be a broker that died, disk and all, before this controller was elected.
    """
    active = tuple(node for node in replicas if image.is_active(node))
    isr = tuple(node for node in active if node not in image.full_brokers) or active
    if len(isr) >= Rules(min_isr).effective_min_isr(len(replicas)):
        return isr, None
    return isr, tuple(node for node in replicas if node not in isr)
