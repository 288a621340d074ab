"""How far share groups have come: from their coordinators, and from the windows of the partition leaders.

Coordinators know the start offset and the lag; any cluster with share groups has them. Leaders that
describe their windows also know who holds what. Brokers of Apache Kafka do not describe any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.remote.cluster import Cluster, by_topic
from millpond.remote.errors import ClusterError, check
from millpond.wire import messages as m

GROUPS_AT_ONCE: Final = 100
"""Groups whose windows are asked for in one request."""

Window = m.DescribeShareGroupOffsetsResponse.ShareWindow


class Position(NamedTuple):
    """How far a share group has come in a partition, as its coordinator knows."""

    start: int
    """Everything before it is finished; -1 if the group has not read the partition yet."""
    lag: int
    """Offsets that are not finished; -1 if unknown."""


class LeaderWindow(NamedTuple):
    """The share window of a partition, as its leader describes it."""

    start: int
    lag: int
    leader_epoch: int
    window: Window
    is_loaded: bool = True
    """False: it is as it was written down, and nothing was counted."""


def positions_of(cluster: Cluster, group: str) -> dict[TopicPartition, Position] | None:
    """The partitions that the share group reads, or has read. None if there is no such group."""
    kind = m.DescribeShareGroupOffsetsRequest
    request = kind(groups=[kind.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)])

    def attempt() -> dict[TopicPartition, Position] | None:
        response = cluster.ask_coordinator(
            "group", group, request, m.DescribeShareGroupOffsetsResponse, lambda each: each.groups[0].error_code
        )
        (answer,) = response.groups
        if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        check(answer.error_code, f"The offsets of share group {group} are not known", answer.error_message)
        return {
            TopicPartition(topic.topic_name, each.partition_index): Position(each.start_offset, each.lag)
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code
        }

    return cluster.retrying(f"ask for the offsets of share group {group}", attempt)


def windows_of(cluster: Cluster, groups: Sequence[str]) -> dict[str, dict[TopicPartition, LeaderWindow]]:
    """The windows of these groups that are loaded, from all nodes that answer."""
    windows: dict[str, dict[TopicPartition, LeaderWindow]] = {each: {} for each in groups}
    kind = m.DescribeShareGroupOffsetsRequest
    for node_id in cluster.addresses():
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[at : at + GROUPS_AT_ONCE]
            asked = [kind.DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in some]
            for answer in _ask_node(cluster, node_id, kind(groups=asked, windows=True)):
                _merge(windows[answer.group_id], answer)
    return windows


def states_of(
    cluster: Cluster, group: str, partitions: Mapping[TopicPartition, int], *, ranges_max: int
) -> dict[TopicPartition, LeaderWindow]:
    """The windows of these partitions, given with their leaders, with the states of their first ranges.

    A leader whose members have left describes the window as it was written down.
    """
    windows: dict[TopicPartition, LeaderWindow] = {}
    kind = m.DescribeShareGroupOffsetsRequest
    for leader in sorted({each for each in partitions.values() if each >= 0}):
        led = by_topic((each.topic, each.partition) for each, node_id in partitions.items() if node_id == leader)
        topics = [
            kind.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=numbers)
            for topic, numbers in led.items()
        ]
        asked = kind.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
        for answer in _ask_node(cluster, leader, kind(groups=[asked], windows=True, ranges_max=ranges_max)):
            _merge(windows, answer)
    return windows


def _ask_node(
    cluster: Cluster, node_id: int, request: m.DescribeShareGroupOffsetsRequest
) -> list[m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup]:
    try:
        response = cluster.broker(node_id).ask(request, m.DescribeShareGroupOffsetsResponse)
    except ClusterError:
        # Without it, there is less to show; the coordinators must answer.
        return []
    # A broker of Apache Kafka takes it for the question to a coordinator, and may refuse.
    return [each for each in response.groups if not each.error_code]


def _merge(
    windows: dict[TopicPartition, LeaderWindow],
    answer: m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup,
) -> None:
    for topic in answer.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.topic_name, each.partition_index)
            # For a moment after an election, two nodes may have a window.
            other = windows.get(partition)
            if each.window.end_offset < 0 or (other is not None and other.leader_epoch > each.leader_epoch):
                continue
            windows[partition] = LeaderWindow(each.start_offset, each.lag, each.leader_epoch, each.window)


def started(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """The start of each partition that has been read."""
    return {each: position.start for each, position in positions.items() if position.start >= 0}
