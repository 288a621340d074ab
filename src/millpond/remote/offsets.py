"""The first and last offsets of partitions, offsets by time, and a group's committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster, by_connection, by_topic
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import STALE_LEADER, Answered, ClusterError, UnknownTopic, check
from millpond.wire import messages as m

Isolation = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": 0, "read_committed": 1}

PARTITIONS_AT_ONCE_MAX: Final = 10_000

_EARLIEST: Final = -2
_LATEST: Final = -1
_NONE: Final = -1
_CONSUMER: Final = -1
_DEBUGGER: Final = -2
"""The replica id of a debug consumer."""
_OFFSET_FETCH_NEWEST: Final = 7
"""The last version that requests one group at a time."""


def earliest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The log start offset of each partition."""
    return _list_offsets(cluster, dict.fromkeys(partitions, _EARLIEST), "read_uncommitted")


def latest(
    cluster: Cluster, partitions: Iterable[TopicPartition], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """The end offset that a consumer sees."""
    return _list_offsets(cluster, dict.fromkeys(partitions, _LATEST), isolation)


def log_ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The leader's log end offset, committed or not."""
    return _list_offsets(cluster, dict.fromkeys(partitions, _LATEST), "read_uncommitted", replica_id=_DEBUGGER)


def at_times(
    cluster: Cluster, times_ms: Mapping[TopicPartition, int], isolation: Isolation = "read_uncommitted"
) -> dict[TopicPartition, int | None]:
    """The first offset whose record is not older; None if all records are."""
    listed = _list_offsets(cluster, times_ms, isolation)
    return {partition: None if offset == _NONE else offset for partition, offset in listed.items()}


def commit_group(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members."""
    cluster.retrying(f"commit the offsets of group {group!r}", lambda: _commit_group(cluster, group, offsets))


def committed_by_group(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """The group's committed offsets; partitions without one are left out."""

    def attempt() -> dict[TopicPartition, int]:
        response = cluster.ask_coordinator(
            "group",
            group,
            m.OffsetFetchRequest(group_id=group, topics=None),
            m.OffsetFetchResponse,
            lambda each: each.error_code,
            newest=_OFFSET_FETCH_NEWEST,
        )
        check(response.error_code, f"the offsets of group {group!r} are not known")
        return {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in response.topics
            for each in topic.partitions
            if each.error_code == ErrorCode.NONE and each.committed_offset >= 0
        }

    return cluster.retrying(f"ask for the offsets of group {group!r}", attempt)


def _list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation: Isolation, replica_id: int = _CONSUMER
) -> dict[TopicPartition, int]:
    listed: dict[TopicPartition, int] = {}

    def ask_for_the_rest() -> None:
        missing = [each for each in times if each not in listed]
        for connection, partitions in by_connection(
            missing, lambda each: cluster.leader(*each), PARTITIONS_AT_ONCE_MAX
        ):
            its_times = {each: times[each] for each in partitions}
            listed.update(_ask_leader(cluster, connection, its_times, isolation, replica_id))

    cluster.retrying("ask for offsets", ask_for_the_rest)
    return {partition: listed[partition] for partition in times}


def _ask_leader(
    cluster: Cluster,
    connection: BrokerConnection,
    times: Mapping[TopicPartition, int],
    isolation: Isolation,
    replica_id: int,
) -> dict[TopicPartition, int]:
    kind = m.ListOffsetsRequest
    topics = by_topic(
        (topic, kind.ListOffsetsPartition(partition_index=index, timestamp=moment))
        for (topic, index), moment in times.items()
    )
    request = kind(
        replica_id=replica_id,
        isolation_level=ISOLATION_LEVELS[isolation],
        topics=[kind.ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
    )
    try:
        response = connection.ask(request, m.ListOffsetsResponse)
    except ClusterError:
        for name in topics:
            cluster.forget(name)
        raise
    listed: dict[TopicPartition, int] = {}
    fault: Answered | None = None
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.NONE:
                listed[TopicPartition(topic.name, each.partition_index)] = each.offset
                continue
            fault = Answered(f"the offsets of {topic.name}[{each.partition_index}]", each.error_code)
            if each.error_code in STALE_LEADER:
                cluster.forget(topic.name)
    if fault is not None:
        raise fault
    return listed


def _commit_group(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    kind, part = m.OffsetCommitRequest, m.OffsetCommitRequest.OffsetCommitRequestPartition
    topics = by_topic(
        (topic, part(partition_index=index, committed_offset=offset, committed_metadata=""))
        for (topic, index), offset in offsets.items()
    )
    request = kind(
        group_id=group,
        topics=[kind.OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
    )
    # From version 10 on topics are identified by id.
    response = cluster.ask_coordinator("group", group, request, m.OffsetCommitResponse, _worst, newest=9)
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"{topic.name}[{each.partition_index}] is gone; group {group!r} cannot commit it")
            if each.error_code != ErrorCode.NONE:
                advice = None
                if each.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    advice = "the group has members of its own; choose a name that no consumer uses"
                raise Answered(f"group {group!r} cannot commit", each.error_code, advice)


def _worst(response: m.OffsetCommitResponse) -> int:
    return max((each.error_code for topic in response.topics for each in topic.partitions), default=0)
