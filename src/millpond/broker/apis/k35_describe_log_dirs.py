"""DescribeLogDirs (35), versions 1-5: the size of each partition on disk, and the free space.

2 flexible · 3 a top-level error · 4 the disk's size and free space · 5 cordoned folders, of which there are none. A
private tag asks for the log end offsets (decision 33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.administration.unclean_recovery import log_end_of
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.loop.steps import Steps, in_slices, run_steps
from millpond.broker.replication.partitions import Partition
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, NodeContext

PARTITIONS_AT_ONCE: Final = 500


def handle(node: NodeContext, data: DataContext, call: Call, request: m.DescribeLogDirsRequest) -> Outcome:
    return run_steps(node.clock, _describe(node, data, request))


def _describe(
    node: NodeContext, data: DataContext, request: m.DescribeLogDirsRequest
) -> Steps[m.DescribeLogDirsResponse]:
    folder = data.store.folder
    by_topic: dict[str, m.DescribeLogDirsResponse.DescribeLogDirsTopic] = {}
    for number, some in enumerate(in_slices(_wanted(data, request), PARTITIONS_AT_ONCE)):
        if number:
            yield None
        for partition in some:
            name, index = partition.name
            topic = by_topic.get(name)
            if topic is None:
                topic = by_topic[name] = m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=[])
            described = m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(partition.committed_offset - partition.log.end_offset, 0),
            )
            if request.with_log_ends and (end := log_end_of(partition)) is not None:
                topic.topic_id = partition.topic_id
                described.last_epoch, described.end_offset = end
            topic.partitions.append(described)
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=folder, topics=list(by_topic.values()))
    try:
        result.total_bytes = node.world.disk.total_bytes(folder)
        result.usable_bytes = node.world.disk.free_bytes(folder)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return m.DescribeLogDirsResponse(results=[result])


def _wanted(data: DataContext, request: m.DescribeLogDirsRequest) -> list[Partition]:
    if request.topics is None:
        return list(data.partitions)
    named = [data.partitions.get(topic.topic, index) for topic in request.topics for index in topic.partitions]
    return [partition for partition in named if partition is not None]


API = Api(
    key=35,
    name="DescribeLogDirs",
    versions=(1, 5),
    handle=handle,
    lists="topics",
    # The handler runs in steps.
    whole_max=100_000,
    rights=on_cluster(Operation.DESCRIBE),
)
