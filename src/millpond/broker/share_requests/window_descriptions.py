"""DescribeShareGroupOffsets with `windows`: a node describes the share windows that it leads, from its memory.

With `ranges_max` it also lists that many ranges of each window, from the first unfinished record on. Of a named
partition that no member reads here, it then describes the window as it was written down.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.later import gather
from millpond.base.named_tuple import NamedTuple
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.shares.holders import holders_of
from millpond.broker.shares.oldest import OldestRecord, find_oldest
from millpond.broker.shares.slots import Waits
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state import NO_OFFSET
from millpond.coordinators.shares.state_batches import RecordState
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext
    from millpond.broker.coordination.share_state import ReadState
    from millpond.broker.shares.group_reads import GroupReads
    from millpond.broker.shares.share_leader import ShareLeader
    from millpond.broker.shares.slots import Slot

Response = m.DescribeShareGroupOffsetsResponse
Group = Response.DescribeShareGroupOffsetsResponseGroup
Topic = Response.DescribeShareGroupOffsetsResponseTopic
Result = Response.DescribeShareGroupOffsetsResponsePartition
Range = Response.WindowRange
AskedGroup = m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup

WINDOWS_AT_ONCE: Final = 5
"""Windows that are described in one step; each has up to ten thousand locks, which take a millisecond or two."""

RANGES_MAX: Final = 1_000
"""Ranges that are listed of one window."""
RANGES_IN_ALL_MAX: Final = 50_000


DELAYED: Final = 5
"""In ranges, besides the states of records: available, but not yet."""
ANY_EPOCH: Final = -1
"""The leader epoch of a read that fences nobody."""


class _Known(NamedTuple):
    """A window, and the timestamp of its oldest record."""

    window: ShareWindow
    oldest: OldestRecord
    leader: ShareLeader | None
    """None if the window is as it was written down: nobody holds its records."""


def describe_windows(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    asked: AskedGroup,
    ranges_max: int = 0,
) -> Steps[Group]:
    """The named partitions, or those with a window here. A partition without a window has none in the result."""
    reads = data.shares().known(asked.group_id)
    group = Group(group_id=asked.group_id, topics=[])
    with_written = ranges_max > 0 and asked.topics is not None
    at_once, ranges_left = 2 if ranges_max else WINDOWS_AT_ONCE, RANGES_IN_ALL_MAX
    image = metadata.image
    for name, numbers in _wanted(metadata, reads, asked):
        topic = image.topics.get(name)
        described = Topic(topic_name=name, partitions=[])
        group.topics.append(described)
        if topic is not None:
            described.topic_id = topic.id
        for some in in_slices(numbers, at_once):
            known = {} if reads is None or topic is None else _leaders(reads, topic.id, some)
            if with_written:
                absent = [each for each in some if each not in known]
                yield from _add_written(data, coordination, asked.group_id, name, absent, known)
            yield find_oldest(node.workers, ((each.oldest, each.window.start_offset) for each in known.values()))
            now_ms = node.clock.monotonic_ms()
            for number in some:
                result = Result(partition_index=number, start_offset=NO_OFFSET)
                facts, partition = image.partition(name, number), data.partitions.get(name, number)
                if facts is not None:
                    result.leader_epoch = facts.leader_epoch
                if partition is not None and partition.is_leader:
                    result.window.high_watermark = partition.committed_offset
                if number in known:
                    _fill(result, known[number], now_ms, min(ranges_max, ranges_left, RANGES_MAX))
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


def _leaders(reads: GroupReads, topic_id: UUID, numbers: list[int]) -> dict[int, _Known]:
    """The windows that are loaded."""
    found = {number: reads.leaders.get((topic_id, number)) for number in numbers}
    return {
        number: _Known(each.window, each.oldest, each)
        for number, each in found.items()
        if each is not None and each.window is not None
    }


def _add_written(
    data: DataContext,
    coordination: CoordinationContext,
    group_id: str,
    topic: str,
    numbers: list[int],
    known: dict[int, _Known],
) -> Steps[None]:
    """Add the windows as the share coordinator has them, of partitions led here."""
    led = [(number, data.partitions.get(topic, number)) for number in dict.fromkeys(numbers)]
    partitions = {number: each for number, each in led if each is not None and each.is_leader}
    calls = [
        coordination.share_state.read(SharePartition(group_id, each.topic_id, number), ANY_EPOCH)
        .recover(Refused, _nothing)
        .recover(OSError, _nothing)
        for number, each in partitions.items()
    ]
    states: list[ReadState | None] = yield gather(calls)
    for (number, partition), state in zip(partitions.items(), states, strict=True):
        # A group that has not read the partition yet has no start.
        if state is not None and state.start_offset >= 0:
            window = ShareWindow.load(ShareSettings(), state.start_offset, state.batches)
            window.advance_start(partition.log.start_offset)
            known[number] = _Known(window, OldestRecord(partition), None)


def _nothing(_: Exception) -> None:
    """The state is not there, or the coordinator is not: the result has no window."""


def _fill(result: Result, known: _Known, now_ms: int, ranges_max: int) -> None:
    window = known.window
    if known.leader is not None and known.leader.ended:
        # It has ended while a worker read.
        return
    counts, described = window.counts(), result.window
    result.start_offset = window.start_offset
    result.lag = max(described.high_watermark - window.start_offset - counts.finished, 0)
    described.end_offset = window.end_offset
    for name in counts.__slots__:
        setattr(described, name, getattr(counts, name))
    described.oldest_timestamp_ms = known.oldest.timestamp_ms(window.start_offset)
    described.holders = [Response.WindowHolder(**each._asdict()) for each in holders_of(window, now_ms)]
    if ranges_max > 0 and window.start_offset < window.end_offset:
        slots = window.slots(window.start_offset, window.end_offset - 1)
        described.ranges = [_range(*each) for each in islice(slots, ranges_max)]


def _range(first: int, last: int, slot: Slot) -> Range:
    # A change that is being written is not certain yet.
    state = RecordState.ACQUIRED if slot.change is not None else slot.state
    if slot.waits is Waits.FOR_TIME and slot.change is None:
        return Range(first_offset=first, last_offset=last, state=DELAYED, deliveries=slot.deliveries)
    return Range(first_offset=first, last_offset=last, state=state, deliveries=slot.deliveries)
