"""DescribeShareGroupOffsets with `windows`: a node describes the share windows that it leads, from its memory.

With `ranges_max` it also lists that many ranges of each window, from the first unfinished record on.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.shares.holders import holders_of
from millpond.broker.shares.oldest import find_oldest
from millpond.coordinators.shares.state import NO_OFFSET
from millpond.coordinators.shares.state_batches import RecordState
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.shares.group_reads import GroupReads
    from millpond.broker.shares.share_leader import ShareLeader
    from millpond.broker.shares.window import ShareWindow

Response = m.DescribeShareGroupOffsetsResponse
Group = Response.DescribeShareGroupOffsetsResponseGroup
Topic = Response.DescribeShareGroupOffsetsResponseTopic
Result = Response.DescribeShareGroupOffsetsResponsePartition
AskedGroup = m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup

WINDOWS_AT_ONCE: Final = 20
"""Windows that are described in one step; each has up to ten thousand locks."""


RANGES_MAX: Final = 1_000
"""Ranges that are listed of one window."""
RANGES_IN_ALL_MAX: Final = 50_000


def describe_windows(
    node: NodeContext, metadata: MetadataContext, data: DataContext, asked: AskedGroup, ranges_max: int = 0
) -> Steps[Group]:
    """The named partitions, or those with a window here. A partition without a window has none in the result."""
    reads = data.shares().known(asked.group_id)
    group = Group(group_id=asked.group_id, topics=[])
    at_once, ranges_left = 2 if ranges_max else WINDOWS_AT_ONCE, RANGES_IN_ALL_MAX
    image = metadata.image
    for name, numbers in _wanted(metadata, reads, asked):
        topic = image.topics.get(name)
        described = Topic(topic_name=name, partitions=[])
        group.topics.append(described)
        if topic is not None:
            described.topic_id = topic.id
        for some in in_slices(numbers, at_once):
            leaders = {} if reads is None or topic is None else _leaders(reads, topic.id, some)
            starts = ((each.oldest, window.start_offset) for each, window in leaders.values())
            yield find_oldest(node.workers, starts)
            now_ms = node.clock.monotonic_ms()
            for number in some:
                result = Result(partition_index=number, start_offset=NO_OFFSET)
                known, partition = image.partition(name, number), data.partitions.get(name, number)
                if known is not None:
                    result.leader_epoch = known.leader_epoch
                if partition is not None and partition.is_leader:
                    result.window.high_watermark = partition.committed_offset
                if number in leaders:
                    _fill(result, *leaders[number], now_ms)
                    _list_ranges(result, *leaders[number], min(ranges_max, ranges_left))
                    ranges_left -= len(result.window.ranges)
                described.partitions.append(result)
            yield None
    return group


def _wanted(metadata: MetadataContext, reads: GroupReads | None, asked: AskedGroup) -> list[tuple[str, list[int]]]:
    if asked.topics is not None:
        return [(each.topic_name, each.partitions) for each in asked.topics]
    by_topic: dict[str, list[int]] = {}
    for topic_id, number in () if reads is None else reads.leaders:
        topic = metadata.image.topics_by_id.get(topic_id)
        if topic is not None:
            by_topic.setdefault(topic.name, []).append(number)
    return [(name, sorted(numbers)) for name, numbers in sorted(by_topic.items())]


def _leaders(reads: GroupReads, topic_id: UUID, numbers: list[int]) -> dict[int, tuple[ShareLeader, ShareWindow]]:
    """The leaders that have loaded their windows."""
    found = {number: reads.leaders.get((topic_id, number)) for number in numbers}
    return {
        number: (each, each.window) for number, each in found.items() if each is not None and each.window is not None
    }


def _fill(result: Result, leader: ShareLeader, window: ShareWindow, now_ms: int) -> None:
    if leader.ended:
        # It has ended while a worker read.
        return
    counts, described = window.counts(), result.window
    result.start_offset = window.start_offset
    result.lag = max(described.high_watermark - window.start_offset - counts.finished, 0)
    described.end_offset = window.end_offset
    for name in counts.__slots__:
        setattr(described, name, getattr(counts, name))
    described.oldest_timestamp_ms = leader.oldest.timestamp_ms(window.start_offset)
    described.holders = [Response.WindowHolder(**each._asdict()) for each in holders_of(window, now_ms)]


def _list_ranges(result: Result, leader: ShareLeader, window: ShareWindow, ranges_max: int) -> None:
    count = 0 if leader.ended else min(ranges_max, RANGES_MAX)
    if count <= 0 or window.start_offset == window.end_offset:
        return
    result.window.ranges = [
        # A change that is being written is not certain yet.
        Response.WindowRange(
            first_offset=first,
            last_offset=last,
            state=RecordState.ACQUIRED if slot.change is not None else slot.state,
            deliveries=slot.deliveries,
        )
        for first, last, slot in islice(window.slots(window.start_offset, window.end_offset - 1), count)
    ]
