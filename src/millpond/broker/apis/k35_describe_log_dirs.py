"""DescribeLogDirs (35), versions 1-5: how large each partition is on disk, and how much room is left.

2 flexible · 3 a top-level error · 4 the disk's size and free space · 5 cordoned folders, of which there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.replication.partitions import Partition
from millpond.broker.security.rights import on_cluster
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.DescribeLogDirsRequest) -> Outcome:
    folder = broker.store.folder
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=folder, topics=[])
    by_topic: dict[str, list[Partition]] = {}
    for partition in _wanted(broker, request):
        by_topic.setdefault(partition.name.topic, []).append(partition)
    result.topics = [
        m.DescribeLogDirsResponse.DescribeLogDirsTopic(
            name=name,
            partitions=[
                m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=partition.name.partition,
                    partition_size=partition.log.size_bytes,
                    offset_lag=max(partition.committed_offset - partition.log.end_offset, 0),
                )
                for partition in partitions
            ],
        )
        for name, partitions in by_topic.items()
    ]
    try:
        result.total_bytes = broker.world.disk.total_bytes(folder)
        result.usable_bytes = broker.world.disk.free_bytes(folder)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return m.DescribeLogDirsResponse(results=[result])


def _wanted(broker: Services, request: m.DescribeLogDirsRequest) -> list[Partition]:
    if request.topics is None:
        return list(broker.partitions)
    named = [broker.partitions.get(topic.topic, index) for topic in request.topics for index in topic.partitions]
    return [partition for partition in named if partition is not None]


API = Api(
    key=35,
    name="DescribeLogDirs",
    versions=(1, 5),
    handle=handle,
    lists="topics",
    rights=on_cluster(Operation.DESCRIBE),
)
