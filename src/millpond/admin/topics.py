"""List and describe topics; create, grow, alter and delete them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused, unknown_topic
from millpond.admin.offsets import bounds_of
from millpond.admin.settings import (
    DEFAULT_SOURCE,
    SOURCES,
    Subject,
    alter_settings,
    change_settings,
    describe_configs,
)
from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.base.words import counted
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import Answered, ClusterError, check
from millpond.wire import messages as m

_LOG_DIRS_NEWEST: Final = 1
_DELETE_NEWEST: Final = 5
"""The last DeleteTopics version that names topics only by name."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    name: str
    value: str | None
    """None for a secret."""
    source: str


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    partition: int
    leader: int
    """-1 if there is no leader."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int | None
    end: int | None
    size_bytes: int | None
    """The leader's size on disk; None if unknown."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    name: str
    partitions: tuple[PartitionFacts, ...]
    settings: tuple[TopicSetting, ...]
    """The non-default settings."""


def find_topic(cluster: Cluster, name: str) -> TopicInfo:
    return find_topics(cluster, [name])[name]


def find_topics(cluster: Cluster, names: Iterable[str], *, to_create: bool = True) -> dict[str, TopicInfo]:
    """The topics with these names; an unknown name is refused with the nearest match."""
    infos = cluster.topics()
    unique = list(dict.fromkeys(names))
    for name in unique:
        if name not in infos:
            raise unknown_topic(name, infos, to_create=to_create)
    return {name: infos[name] for name in unique}


def led_partitions(topics: Iterable[TopicInfo]) -> list[TopicPartition]:
    """The partitions with a leader: the others cannot be queried."""
    return [
        TopicPartition(topic.name, index)
        for topic in topics
        for index, each in sorted(topic.partitions.items())
        if each.leader >= 0
    ]


def describe_topics(cluster: Cluster, names: Iterable[str]) -> list[TopicFacts]:
    topics = find_topics(cluster, names)
    bounds = bounds_of(cluster, led_partitions(topics.values()))
    sizes = partition_sizes(cluster)
    settings = own_settings(cluster, list(topics))
    facts = []
    for name, topic in topics.items():
        partitions = []
        for index, each in sorted(topic.partitions.items()):
            partition = TopicPartition(name, index)
            bound = bounds.get(partition)
            partitions.append(
                PartitionFacts(
                    index,
                    each.leader,
                    each.replicas,
                    each.in_sync,
                    bound.start if bound else None,
                    bound.end if bound else None,
                    sizes.get((each.leader, partition)),
                )
            )
        facts.append(TopicFacts(name, tuple(partitions), settings[name]))
    return facts


def own_settings(cluster: Cluster, names: Sequence[str]) -> dict[str, tuple[TopicSetting, ...]]:
    """The non-default settings of each topic."""
    subjects = [Subject("topic", name) for name in names]

    def attempt() -> dict[str, tuple[TopicSetting, ...]]:
        settings = {}
        for each in describe_configs(cluster.any(), subjects):
            check(each.error_code, f"The settings of {each.resource_name} are not known", each.error_message)
            settings[each.resource_name] = tuple(
                TopicSetting(
                    entry.name, None if entry.is_sensitive else entry.value, SOURCES.get(entry.config_source, "?")
                )
                for entry in sorted(each.configs, key=lambda entry: (entry.config_source, entry.name))
                if entry.config_source != DEFAULT_SOURCE
            )
        return settings

    return cluster.retrying("ask for the settings of topics", attempt)


def partition_sizes(cluster: Cluster) -> dict[tuple[int, TopicPartition], int]:
    """Bytes on disk by broker and partition. Brokers that do not answer are missing."""
    sizes: dict[tuple[int, TopicPartition], int] = {}
    for broker in cluster.addresses():
        try:
            request = m.DescribeLogDirsRequest(topics=None)
            response = cluster.broker(broker).ask(request, m.DescribeLogDirsResponse, newest=_LOG_DIRS_NEWEST)
        except (ClusterError, MalformedMessage):
            continue
        sizes |= {
            (broker, TopicPartition(topic.name, each.partition_index)): each.partition_size
            for result in response.results
            for topic in result.topics
            for each in topic.partitions
            if not each.is_future_key
        }
    return sizes


def grow_topic(cluster: Cluster, name: str, partitions: int) -> None:
    """Increase the partition count to `partitions`; it cannot be decreased."""
    count = len(find_topic(cluster, name).partitions)
    if partitions < count:
        raise Refused(f"Topic {name} has {counted(count, 'partition')}, and a topic cannot lose partitions.")
    if partitions == count:
        return
    kind = m.CreatePartitionsRequest
    growth = kind.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = kind(topics=[growth], timeout_ms=cluster.patience_ms)

    def attempt() -> None:
        (result,) = cluster.controller().ask(request, m.CreatePartitionsResponse).results
        check(result.error_code, f"Topic {name} keeps its partitions", result.error_message)

    cluster.retrying(f"give topic {name} more partitions", attempt)
    cluster.forget(name)


def alter_topic(cluster: Cluster, name: str, settings: Mapping[str, str], unset: Collection[str] = ()) -> None:
    """Change settings; if a name to unset is not a topic setting, nothing is changed."""
    topic = Subject("topic", name)
    if unset:
        change_settings(cluster, topic, settings, unset)
    else:
        # The cluster validates names and values itself.
        alter_settings(cluster, topic, settings)


def delete_topics(cluster: Cluster, names: Collection[str]) -> None:
    """Delete the topics and their records; if any does not exist, nothing is deleted."""
    find_topics(cluster, names, to_create=False)
    request = m.DeleteTopicsRequest(topic_names=list(dict.fromkeys(names)), timeout_ms=cluster.patience_ms)
    response = cluster.controller().ask(request, m.DeleteTopicsResponse, newest=_DELETE_NEWEST)
    for each in response.responses:
        check(each.error_code, f"Topic {each.name} was not deleted", each.error_message)
        cluster.forget(each.name or "")


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> None:
    """Delete all records before the given offset of each partition."""
    kind = m.DeleteRecordsRequest
    for partition, offset in before.items():
        topic = kind.DeleteRecordsTopic(
            name=partition.topic,
            partitions=[kind.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)],
        )
        request = kind(topics=[topic], timeout_ms=cluster.patience_ms)

        def attempt(partition: TopicPartition = partition, request: m.DeleteRecordsRequest = request) -> None:
            response = cluster.leader(*partition).ask(request, m.DeleteRecordsResponse)
            for each in (part for named in response.topics for part in named.partitions):
                if each.error_code:
                    cluster.forget(partition.topic)
                    raise Answered(f"The records of {partition.folder} were not deleted", each.error_code)

        cluster.retrying(f"delete records of {partition.topic}", attempt)
