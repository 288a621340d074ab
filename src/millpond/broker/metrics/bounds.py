"""Where partitions begin and end: from this node's own replicas, and otherwise from their leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from millpond.base.ids import TopicPartition
from millpond.base.later import gather
from millpond.base.named_tuple import NamedTuple
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.peers.requester import RequestLost
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.peers.peers import Peers

ROWS_AT_ONCE: Final = 300
ASK_MS: Final = 1_000
ASKED_AT_ONCE: Final = 1_000
LIST_OFFSETS_VERSION: Final = 6
LATEST, EARLIEST = -1, -2
CONSUMER: Final = -1
"""The replica id of requests that do not come from a replica."""


class Bounds(NamedTuple):
    start: int
    end: int


class PartitionBounds:
    def __init__(self, node: NodeContext, metadata: MetadataContext, data: DataContext, peers: Peers) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self._peers = peers

    def find(self, wanted: Iterable[TopicPartition]) -> Steps[Mapping[TopicPartition, Bounds]]:
        """The log start offset and end of the committed records of each partition, where they can be determined."""
        bounds: dict[TopicPartition, Bounds] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for some in in_slices(wanted, ROWS_AT_ONCE):
            for each in some:
                partition = self._data.partitions.get(*each)
                known = self._metadata.image.partition(*each)
                if partition is not None and (partition.is_leader or partition.follower is not None):
                    bounds[each] = Bounds(partition.log.start_offset, partition.committed_offset)
                elif known is not None and known.leader >= 0 and known.leader != self._node.node_id:
                    elsewhere.setdefault(known.leader, []).append(each)
            yield None
        found: dict[TopicPartition, list[int]] = {}
        for leader, partitions in elsewhere.items():
            for some in in_slices(partitions, ASKED_AT_ONCE):
                points = [_list_offsets(some, point) for point in (EARLIEST, LATEST)]
                asked = [self._peers.ask(leader, each, LIST_OFFSETS_VERSION, ASK_MS) for each in points]
                for response in (yield gather([each.recover(RequestLost, nothing) for each in asked])):
                    for topic in () if response is None else response.topics:
                        for part in topic.partitions:
                            if not part.error_code:
                                name = TopicPartition(topic.name, part.partition_index)
                                found.setdefault(name, []).append(part.offset)
        bounds.update((each, Bounds(*both)) for each, both in found.items() if len(both) == 2)
        return bounds


def nothing(_: RequestLost) -> None:
    """No response in time: the page leaves it out."""


def _list_offsets(partitions: list[TopicPartition], point: int) -> m.ListOffsetsRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    kind = m.ListOffsetsRequest
    return kind(
        replica_id=CONSUMER,
        isolation_level=0,
        topics=[
            kind.ListOffsetsTopic(
                name=topic,
                partitions=[
                    kind.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=point)
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic.items()
        ],
    )
