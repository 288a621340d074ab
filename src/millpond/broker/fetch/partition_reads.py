"""Reading one partition, and its part of a Fetch response."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.broker.requests.replies import release_ranges
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.replication.partitions import Partition

READ_COMMITTED = 1

TopicResponses: TypeAlias = "dict[tuple[str, UUID], m.FetchResponse.FetchableTopicResponse]"
"""By topic name and id."""


class PartitionRead(NamedTuple):
    high_watermark: int
    stable_offset: int
    start_offset: int
    ranges: list[FileRange]
    aborted: list[tuple[int, int]]
    """Producer id and first offset of aborted transactions, for consumers with isolation level READ_COMMITTED."""


def read_committed(
    partition: Partition,
    offset: int,
    bytes_max: int,
    bytes_left: int,
    stable_only: bool,
    at_least_one_batch: bool,
) -> PartitionRead:
    """What a consumer may read from `offset` on: up to the high watermark, or to the LSO with `stable_only`.

    The limits are `bytes_max` for the partition and `bytes_left` for the response.
    """
    log = partition.log
    high_watermark = partition.committed_offset
    stable_offset = log.stable_offset(high_watermark)
    upper_offset = stable_offset if stable_only else high_watermark
    start_offset = log.start_offset
    if offset == upper_offset and start_offset <= upper_offset <= log.end_offset and log.is_online:
        # The consumer has caught up, which is the most common case: no lookup is needed.
        return PartitionRead(high_watermark, stable_offset, start_offset, [], [])
    bytes_max = min(bytes_max, max(bytes_left, 0))
    ranges, upper_offset = partition.read(
        offset, bytes_max, at_least_one_batch=at_least_one_batch, upper_offset=upper_offset
    )
    aborted: list[tuple[int, int]] = []
    if stable_only and ranges:
        try:
            aborted, end = log.limited_aborted_transactions(offset, upper_offset)
            if end < upper_offset:
                fewer, _ = partition.read(offset, bytes_max, at_least_one_batch=at_least_one_batch, upper_offset=end)
                if fewer:
                    release_ranges(ranges)
                    ranges = fewer
                else:
                    # Compaction has removed everything before: the consumer would not get on.
                    aborted = log.aborted_transactions(offset, upper_offset)
        except Refused:
            # The index of aborted transactions may be unreadable though the records are not.
            release_ranges(ranges)
            raise
    return PartitionRead(high_watermark, stable_offset, log.start_offset, ranges, aborted)


def failed_partition(
    index: int, code: ErrorCode, partition: Partition | None = None
) -> m.FetchResponse.PartitionData:
    return m.FetchResponse.PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1 if partition is None else partition.committed_offset,
        last_stable_offset=-1,
        log_start_offset=-1 if partition is None else partition.log.start_offset,
        records=b"",
    )


def add_to_topic(topics: TopicResponses, name: str, topic_id: UUID, partition: m.FetchResponse.PartitionData) -> None:
    topic = topics.get((name, topic_id))
    if topic is None:
        topic = topics[name, topic_id] = m.FetchResponse.FetchableTopicResponse(
            topic=name, topic_id=topic_id, partitions=[]
        )
    topic.partitions.append(partition)
