"""The markers that end transactions: written into every partition, wherever its leader is, until all of them have it.

Only a topic that the image no longer has needs none. A partition that has no leader, or one that does not answer, is
tried again for as long as it takes: skipped, it would keep the transaction open for ever, or give its records another
outcome. An order ends when all its markers are committed, or when this node coordinates the transaction no more: then
the next coordinator finds the decision in its log, and gives the order anew.

Orders may come by the hundred, when a coordinator is loaded or many transactions time out at once. So each turn of
the loop has room for some markers only, and what is left waits for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, end_all, failed
from millpond.base.named_tuple import NamedTuple
from millpond.broker.coordination.coordination import Producer
from millpond.broker.peers.requester import RequestLost
from millpond.broker.replication.partitions import Partition
from millpond.metadata.leadership import NO_LEADER
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.base.ids import NodeId
    from millpond.base.ports import Clock, Timer
    from millpond.broker.coordination.coordination import Coordination
    from millpond.broker.peers.peers import Peers
    from millpond.broker.replication.partitions import Partitions
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.transactions.shard import TransactionShard, WriteMarkers
    from millpond.metadata.image import Image

OVERTAKEN = frozenset(
    {ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)
"""A marker that a newer coordinator or producer has overtaken is not needed any more."""

TRY_AGAIN_MS = 100
TRY_AGAIN_MS_MAX = 10_000
"""How long to wait before a marker is tried again that a partition could not take; longer each time."""

ASK_MS = 4_000
"""How long another node may take to commit markers; a change of leaders ends the wait at once."""

WRITE_TXN_MARKERS_VERSION = 2

MARKERS_AT_ONCE_MAX = 250
"""How many partitions are looked at in one turn of the loop; everybody else waits for it."""


class _Target(NamedTuple):
    """A partition by its topic's id: another topic of the same name is not meant."""

    topic_id: UUID
    partition_index: int


class MarkerNeeds(Protocol):
    """What writing markers needs of a broker."""

    node_id: NodeId
    clock: Clock
    partitions: Partitions
    marker_peers: Peers
    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    is_stopping: bool

    @property
    def image(self) -> Image: ...


class Markers:
    """Carries out the orders of the transaction coordinators of this node."""

    def __init__(self, broker: MarkerNeeds) -> None:
        self._broker = broker
        self._deliveries: dict[str, _Delivery] = {}
        """What is under way, by transactional id."""
        self._waiting: dict[str, dict[Later[None], None]] = {}
        self._senders: dict[str, int] = {}
        """By node: the latest connection on which it sent markers."""
        self._in_turn: deque[_Delivery] = deque()
        """Those that have somebody to ask."""
        self._room = MARKERS_AT_ONCE_MAX
        """Room for so many is left in this turn."""
        self._is_asking = False

    def is_latest(self, sender: str, connection_number: int) -> bool:
        """Whether the node that sent markers on this connection has not made another one since.

        It does so when it has given up what it sent on the one before. That may arrive late all the same: after it
        was sent again, and the producer is writing its next transaction in the same epoch, which it would end.
        """
        latest = self._senders[sender] = max(self._senders.get(sender, -1), connection_number)
        return connection_number == latest

    def carry_out(self, order: WriteMarkers) -> None:
        """Write the markers, and tell the coordinator when all of them are committed."""
        known = self._deliveries.get(order.transactional_id)
        if known is not None:
            if known.order == order:
                # A coordinator that was loaded again orders what is under way already.
                return
            known.stop()
        elif not self._is_needed(order):
            return
        delivery = self._deliveries[order.transactional_id] = _Delivery(self, self._broker, order)
        delivery.begin()

    def ask_in_turn(self, delivery: _Delivery) -> None:
        """Let it ask: now if there is room in this turn, or in one of the next."""
        self._in_turn.append(delivery)
        if not self._is_asking:
            self._ask_some()

    def _ask_some(self) -> None:
        if self._room == MARKERS_AT_ONCE_MAX:
            self._broker.clock.call_soon(self._begin_turn)
        self._is_asking = True
        while self._in_turn and self._room > 0:
            delivery = self._in_turn[0]
            self._room -= 1 + delivery.attempt(self._room)
            if not delivery.is_to_ask:
                self._in_turn.popleft()
        self._is_asking = False

    def _begin_turn(self) -> None:
        self._room = MARKERS_AT_ONCE_MAX
        if self._in_turn:
            self._ask_some()

    def _is_needed(self, order: WriteMarkers) -> bool:
        """Whether its markers may still be missing.

        A coordinator that was loaded again gives an order once its log is committed. What was under way from before
        may have ended until then, and the producer may be writing its next transaction, in the same epoch: a second
        marker would end that one.
        """
        try:
            shard_host = self._broker.transactions.shard_host_of(order.transactional_id)
        except Refused:
            # Whoever loads the transaction next orders them again.
            return False
        return shard_host.shard.awaits_markers(order.transactional_id, order.producer_id, order.producer_epoch)

    def on_leaders_changed(self) -> None:
        """The image has other leaders: whoever waits for one of the old ones need not."""
        for delivery in list(self._deliveries.values()):
            delivery.on_leaders_changed()

    def write(
        self,
        partition: Partition,
        producer: Producer,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Later[None]:
        """Write how a transaction ended into one partition; ends once that is committed, Refused if it cannot be."""
        try:
            appended = partition.append_marker(
                producer.id, producer.epoch, committed, coordinator_epoch, transaction_version
            )
        except Refused as refused:
            return failed(refused)
        if partition.name.topic == self._broker.groups.topic:
            # Before anybody hears that it is written: who then asks for the offsets must see them.
            shard_host = self._broker.groups.shard_host_at(partition.name.partition)
            if shard_host is not None:
                shard_host.on_marker(producer, committed, appended.first_offset)
        return partition.after_commit(appended.last_offset + 1, None).recover(OSError, _refuse)

    def end(self, delivery: _Delivery) -> None:
        """All markers of an order are written, or it is not ours to give any more."""
        order = delivery.order
        if self._deliveries.get(order.transactional_id) is not delivery:
            return
        del self._deliveries[order.transactional_id]
        try:
            shard_host = self._broker.transactions.shard_host_of(order.transactional_id)
        except Refused:
            # It has resigned meanwhile. Loaded again it finds the transaction decided, and orders markers once more.
            pass
        else:
            if delivery.is_done and shard_host.shard.coordinator_epoch == order.coordinator_epoch:
                shard_host.run(
                    lambda shard, now_ms: shard.markers_written(
                        order.transactional_id, order.producer_id, order.producer_epoch, now_ms
                    )
                )
        end_all(self._waiting.pop(order.transactional_id, {}).items())

    # For those who come before the markers are written.

    def under_way(self, transactional_id: str) -> bool:
        return transactional_id in self._deliveries

    def written(self, transactional_id: str, within_ms: int) -> Later[None]:
        """Ends when the next transaction of this id has all its markers, or when the time is over."""

        def forget() -> None:
            waiting = self._waiting.get(transactional_id, {})
            waiting.pop(later, None)
            if not waiting:
                self._waiting.pop(transactional_id, None)

        later: Later[None] = Later(forget)
        self._waiting.setdefault(transactional_id, {})[later] = None
        later.expire_after(self._broker.clock, within_ms, lambda: later.finish(None))
        return later


class _Attempt:
    """What one node was asked for at a time; an answer that comes after it was given up is not heard."""

    __slots__ = ("node_id", "targets")

    def __init__(self, node_id: int, targets: list[_Target]) -> None:
        self.node_id = node_id
        self.targets = targets


class _Delivery:
    """One order, until every partition has its marker."""

    def __init__(self, markers: Markers, broker: MarkerNeeds, order: WriteMarkers) -> None:
        self.order = order
        self._markers = markers
        self._broker = broker
        self._left: dict[_Target, None] | None = None
        """The partitions without a marker; None before the first turn."""
        self._under_way: dict[_Target, _Attempt] = {}
        """Some of these."""
        self._to_ask: deque[_Target] = deque()
        """Those that this round has yet to come to."""
        self._is_beginning = False
        self._wait_ms = TRY_AGAIN_MS
        self._timer: Timer | None = None
        self._is_stopped = False
        self._is_asking = False

    @property
    def is_done(self) -> bool:
        return self._left is not None and not self._left

    @property
    def is_to_ask(self) -> bool:
        """Whether it has yet to ask somebody in this round."""
        return not self._is_stopped and (self._is_beginning or bool(self._to_ask))

    def stop(self) -> None:
        """Another order takes its place."""
        self._is_stopped = True
        self._under_way.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Begin a round: ask the leader of every partition that has no marker yet and was not asked already."""
        is_waiting = self.is_to_ask
        self._is_beginning = True
        if not is_waiting:
            self._markers.ask_in_turn(self)

    def attempt(self, most: int) -> int:
        """Ask for so many partitions of the round, or for fewer if there are no more; gives how many."""
        if self._is_stopped:
            return 0
        if not self._is_ours():
            self.stop()
            self._markers.end(self)
            return 0
        left = self._begun()
        self._is_asking = True
        targets = [self._to_ask.popleft() for _ in range(min(most, len(self._to_ask)))]
        by_leader: dict[int, list[_Target]] = {}
        for target in targets:
            leader = self._leader_of(target)
            if leader is None:
                del left[target]
            else:
                by_leader.setdefault(leader, []).append(target)
        for leader, led in by_leader.items():
            if leader == self._broker.node_id:
                for target in led:
                    self._write_here(target)
            elif leader != NO_LEADER:
                self._ask(leader, led)
        self._is_asking = False
        self._go_on()
        return len(targets)

    def _begun(self) -> dict[_Target, None]:
        """What is left; if the round has not begun yet, it has now."""
        if self._left is None:
            topics = self._broker.image.topics
            known = (each for each in self.order.partitions if each[0] in topics)
            self._left = {_Target(topics[name].id, index): None for name, index in known}
        if self._is_beginning:
            self._is_beginning = False
            self._to_ask = deque(target for target in self._left if target not in self._under_way)
        return self._left

    def on_leaders_changed(self) -> None:
        late = {
            target: attempt
            for target, attempt in self._under_way.items()
            if self._leader_of(target) != attempt.node_id
        }
        for target in late:
            del self._under_way[target]
        if late or self._timer is not None:
            self._wait_ms = TRY_AGAIN_MS
            self.begin()

    def _is_ours(self) -> bool:
        """Whether this node is still the coordinator that gave the order; a restart of one is no end of it."""
        transactions = self._broker.transactions
        known = self._broker.image.partition(
            transactions.topic, transactions.partition_of(self.order.transactional_id)
        )
        return (
            known is not None
            and known.leader == self._broker.node_id
            and known.leader_epoch == self.order.coordinator_epoch
            and not self._broker.is_stopping
        )

    def _leader_of(self, target: _Target) -> int | None:
        """Which node leads it; None for a partition that needs no marker, because it does not exist."""
        topic = self._broker.image.topics_by_id.get(target.topic_id)
        if topic is None or not 0 <= target.partition_index < len(topic.partitions):
            return None
        return topic.partitions[target.partition_index].leader

    # One node's part.

    def _write_here(self, target: _Target) -> None:
        partition = self._broker.partitions.by_id(*target)
        if partition is None:
            return
        attempt = self._begin(self._broker.node_id, [target])
        order = self.order
        producer = Producer(order.producer_id, order.producer_epoch)
        written = self._markers.write(
            partition, producer, order.committed, order.coordinator_epoch, order.transaction_version
        )
        done = written.map(lambda _: [target]).recover(
            Refused, lambda refused: [target] if refused.code in OVERTAKEN else []
        )
        done.then(lambda targets: self._on_result(attempt, targets))

    def _ask(self, node_id: int, targets: list[_Target]) -> None:
        attempt = self._begin(node_id, targets)
        names = {target: self._broker.image.topics_by_id[target.topic_id].name for target in targets}
        request = _request(self.order, [(names[target], target.partition_index) for target in targets])

        def written(response: m.WriteTxnMarkersResponse) -> list[_Target]:
            codes = {
                (topic.name, partition.partition_index): partition.error_code
                for marker in response.markers
                for topic in marker.topics
                for partition in topic.partitions
            }
            results = {target: codes.get((names[target], target.partition_index)) for target in targets}
            return [target for target, code in results.items() if code in (ErrorCode.NONE, *OVERTAKEN)]

        asked = self._broker.marker_peers.ask(node_id, request, WRITE_TXN_MARKERS_VERSION, ASK_MS)
        done: Later[list[_Target]] = asked.map(written).recover(RequestLost, lambda _: [])
        done.then(lambda targets: self._on_result(attempt, targets))

    def _begin(self, node_id: int, targets: list[_Target]) -> _Attempt:
        attempt = _Attempt(node_id, targets)
        self._under_way.update(dict.fromkeys(targets, attempt))
        return attempt

    def _on_result(self, attempt: _Attempt, done: Iterable[_Target]) -> None:
        assert self._left is not None
        mine = {target for target in attempt.targets if self._under_way.get(target) is attempt}
        for target in mine:
            del self._under_way[target]
        for target in done:
            if target in mine:
                self._left.pop(target, None)
        if mine:
            self._go_on()

    def _go_on(self) -> None:
        if self._is_stopped or self._is_asking or self._left is None:
            return
        if not self._left:
            self.stop()
            self._markers.end(self)
        elif self._timer is None and not self.is_to_ask and len(self._under_way) < len(self._left):
            self._timer = self._broker.clock.call_later(self._wait_ms, self._again)
            self._wait_ms = min(2 * self._wait_ms, TRY_AGAIN_MS_MAX)

    def _again(self) -> None:
        self._timer = None
        self.begin()


def _request(order: WriteMarkers, partitions: Iterable[tuple[str, int]]) -> m.WriteTxnMarkersRequest:
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=order.producer_id,
        producer_epoch=order.producer_epoch,
        transaction_result=order.committed,
        topics=[
            m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ],
        coordinator_epoch=order.coordinator_epoch,
        transaction_version=order.transaction_version,
    )
    return m.WriteTxnMarkersRequest(markers=[marker])


def _refuse(error: OSError) -> None:
    raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
