"""The controller asks live replicas where their logs end, so that an unclean election loses as little as possible.

It asks with DescribeLogDirs and tagged fields of our own. A node of the previous version answers without them, and is
left out like one that does not answer in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.later import Later, gather
from millpond.broker.loop.steps import in_slices
from millpond.broker.peers.requester import RequestLost
from millpond.metadata.unclean_recovery import LogEnd, LogEnds, ReplicaLogEnd, leaderless
from millpond.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.replication.partitions import Partition

VERSION: Final = 5
NO_OFFSET: Final = -1

ASK_MS_MAX: Final = 2_000
"""How long replicas have to answer. An operator waits for it, and most clients wait longer than that."""

PARTITIONS_PER_REQUEST: Final = 1_000
"""A response is decoded in one turn of the loop."""

Reports = dict[tuple[str, int], dict[int, ReplicaLogEnd]]


def log_end_of(partition: Partition) -> LogEnd | None:
    """Where the log of this node's replica ends; None if it could not lead with it."""
    return LogEnd(partition.log.last_written_epoch, partition.log.end_offset) if partition.log.is_online else None


def ask_log_ends(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    wanted: Iterable[tuple[str, int]] | None,
    timeout_ms: int,
) -> Later[LogEnds]:
    """The log ends of all live replicas of those partitions that have no leader. Never fails."""
    reports: Reports = {}
    silent: set[int] = set()
    asked: list[Later[None]] = []
    for broker_id, names in leaderless(metadata.image, wanted).items():
        epoch = metadata.image.brokers[broker_id].epoch
        if broker_id == node.node_id:
            _report_own(node, data, epoch, names, reports)
            continue

        def read(response: m.DescribeLogDirsResponse, broker_id: int = broker_id, epoch: int = epoch) -> None:
            _read_response(metadata, broker_id, epoch, response, reports)

        def lose(_: RequestLost, broker_id: int = broker_id) -> None:
            silent.add(broker_id)

        for some in in_slices(names, PARTITIONS_PER_REQUEST):
            request = data.replica_peers.ask(broker_id, _request(some), VERSION, min(timeout_ms, ASK_MS_MAX))
            asked.append(request.map(read).recover(RequestLost, lose))

    def end(_: list[None]) -> LogEnds:
        if silent:
            node.journal("replicas did not report where their logs end", brokers=sorted(silent))
        return reports

    return gather(asked).map(end)


def _request(names: Sequence[tuple[str, int]]) -> m.DescribeLogDirsRequest:
    indexes: dict[str, list[int]] = {}
    for topic, index in names:
        indexes.setdefault(topic, []).append(index)
    topics = [
        m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=of_topic)
        for topic, of_topic in indexes.items()
    ]
    return m.DescribeLogDirsRequest(topics=topics, with_log_ends=True)


def _report_own(
    node: NodeContext, data: DataContext, epoch: int, names: Sequence[tuple[str, int]], reports: Reports
) -> None:
    for name in names:
        partition = data.partitions.get(*name)
        end = None if partition is None else log_end_of(partition)
        if end is not None:
            reports.setdefault(name, {})[node.node_id] = ReplicaLogEnd(epoch, end)


def _read_response(
    metadata: MetadataContext, broker_id: int, epoch: int, response: m.DescribeLogDirsResponse, reports: Reports
) -> None:
    for result in response.results:
        for topic in result.topics:
            known = metadata.image.topics.get(topic.name)
            if known is None or known.id != topic.topic_id:
                # The node has not applied yet that the topic was deleted and created again.
                continue
            for each in topic.partitions:
                if each.end_offset != NO_OFFSET:
                    end = ReplicaLogEnd(epoch, LogEnd(each.last_epoch, each.end_offset))
                    reports.setdefault((topic.name, each.partition_index), {})[broker_id] = end
