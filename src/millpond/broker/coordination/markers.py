"""Transaction markers: delivered to the leader of every partition of a transaction until each has committed one.

Only partitions of deleted topics are skipped. A partition without a leader, or whose leader does not answer, is
retried indefinitely: skipping it would leave the transaction open forever or give its records another outcome. An
order ends when all its markers are committed, or when this node no longer coordinates the transaction; the next
coordinator then finds the decision in its log and repeats the order.

Orders may arrive by the hundred, when a coordinator loads or many transactions time out at once. Each turn of the
loop therefore handles a limited number of markers and leaves the rest to the next one.
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
"""A marker superseded by a newer coordinator or producer is no longer needed."""

TRY_AGAIN_MS = 100
TRY_AGAIN_MS_MAX = 10_000
"""Delay before a failed marker is retried; it doubles with each round."""

ASK_MS = 4_000
"""How long another node may take to commit markers; a change of leaders ends the wait at once."""

WRITE_TXN_MARKERS_VERSION = 2

MARKERS_AT_ONCE_MAX = 250
"""How many partitions one turn of the loop handles."""


class _Target(NamedTuple):
    """A partition by topic id, so that a recreated topic of the same name is not meant."""

    topic_id: UUID
    partition_index: int


class MarkerNeeds(Protocol):
    """The parts of a broker that `Markers` uses."""

    node_id: NodeId
    clock: Clock
    partitions: Partitions
    marker_peers: Peers
    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]

    @property
    def image(self) -> Image: ...

    @property
    def is_stopping(self) -> bool: ...


class Markers:
    """Carries out the orders of the transaction coordinators of this node."""

    def __init__(self, broker: MarkerNeeds) -> None:
        self._broker = broker
        self._deliveries: dict[str, _Delivery] = {}
        """Deliveries in progress, by transactional id."""
        self._waiting: dict[str, dict[Later[None], None]] = {}
        self._senders: dict[str, int] = {}
        """The latest connection on which each node sent markers."""
        self._queue: deque[_Delivery] = deque()
        """Deliveries with requests to send."""
        self._budget = MARKERS_AT_ONCE_MAX
        """How many more markers this turn of the loop may handle."""
        self._is_asking = False

    def is_latest(self, sender: str, connection_number: int) -> bool:
        """Whether the node that sent markers on this connection has not opened a newer one since.

        A node opens a new connection when it gives up on the requests of the old one. Such a request may still arrive
        after its retry, when the producer is already writing its next transaction in the same epoch, and would end
        that one.
        """
        latest = self._senders[sender] = max(self._senders.get(sender, -1), connection_number)
        return connection_number == latest

    def carry_out(self, order: WriteMarkers) -> None:
        """Write the markers, and notify the coordinator when all of them are committed."""
        previous = self._deliveries.get(order.transactional_id)
        if previous is not None:
            if previous.order == order:
                # A coordinator that was reloaded repeats an order that is already being carried out.
                return
            previous.stop()
        elif not self._is_needed(order):
            return
        delivery = self._deliveries[order.transactional_id] = _Delivery(self, self._broker, order)
        delivery.begin()

    def ask_in_turn(self, delivery: _Delivery) -> None:
        """Let the delivery send its requests, in this turn of the loop if the budget allows, or in a later one."""
        self._queue.append(delivery)
        if not self._is_asking:
            self._ask_some()

    def _ask_some(self) -> None:
        if self._budget == MARKERS_AT_ONCE_MAX:
            self._broker.clock.call_soon(self._begin_turn)
        self._is_asking = True
        while self._queue and self._budget > 0:
            delivery = self._queue[0]
            self._budget -= 1 + delivery.attempt(self._budget)
            if not delivery.is_to_ask:
                self._queue.popleft()
        self._is_asking = False

    def _begin_turn(self) -> None:
        self._budget = MARKERS_AT_ONCE_MAX
        if self._queue:
            self._ask_some()

    def _is_needed(self, order: WriteMarkers) -> bool:
        """Whether its markers may still be missing.

        A reloaded coordinator gives an order once its log is committed. An earlier delivery may have finished by
        then, and the producer may be writing its next transaction in the same epoch, which a second marker would end.
        """
        try:
            shard_host = self._broker.transactions.shard_host_of(order.transactional_id)
        except Refused:
            # The next coordinator to load the transaction repeats the order.
            return False
        return shard_host.shard.awaits_markers(order.transactional_id, order.producer_id, order.producer_epoch)

    def on_leaders_changed(self) -> None:
        """Retry markers that wait for a deposed leader."""
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
        """Append a marker to one partition; ends once it is committed, or fails with Refused."""
        try:
            appended = partition.append_marker(
                producer.id, producer.epoch, committed, coordinator_epoch, transaction_version
            )
        except Refused as refused:
            return failed(refused)
        if partition.name.topic == self._broker.groups.topic:
            # Before the marker is acknowledged: a client that then fetches the offsets must see them.
            shard_host = self._broker.groups.shard_host_at(partition.name.partition)
            if shard_host is not None:
                shard_host.on_marker(producer, committed, appended.first_offset)
        return partition.after_commit(appended.last_offset + 1, None).recover(OSError, _refuse)

    def end(self, delivery: _Delivery) -> None:
        """All markers of an order are written, or this node no longer coordinates the transaction."""
        order = delivery.order
        if self._deliveries.get(order.transactional_id) is not delivery:
            return
        del self._deliveries[order.transactional_id]
        try:
            shard_host = self._broker.transactions.shard_host_of(order.transactional_id)
        except Refused:
            # It has resigned. Once reloaded, it finds the decision in its log and repeats the order.
            pass
        else:
            if delivery.is_done and shard_host.shard.coordinator_epoch == order.coordinator_epoch:
                shard_host.run(
                    lambda shard, now_ms: shard.markers_written(
                        order.transactional_id, order.producer_id, order.producer_epoch, now_ms
                    )
                )
        end_all(self._waiting.pop(order.transactional_id, {}).items())

    # For requests that arrive before the markers are written.

    def under_way(self, transactional_id: str) -> bool:
        return transactional_id in self._deliveries

    def written(self, transactional_id: str, within_ms: int) -> Later[None]:
        """Ends when the transaction in progress has all its markers, or after `within_ms`."""

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
    """One request to one node; a response that arrives after the attempt was abandoned is ignored."""

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
        self._in_flight: dict[_Target, _Attempt] = {}
        """The partitions of `_left` with a request in flight."""
        self._to_ask: deque[_Target] = deque()
        """The partitions still to be requested in this round."""
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
        """Whether requests remain to be sent in this round."""
        return not self._is_stopped and (self._is_beginning or bool(self._to_ask))

    def stop(self) -> None:
        """Abandon the delivery; another order replaces it."""
        self._is_stopped = True
        self._in_flight.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Begin a round: every partition without a marker and without a request in flight is requested."""
        is_waiting = self.is_to_ask
        self._is_beginning = True
        if not is_waiting:
            self._markers.ask_in_turn(self)

    def attempt(self, most: int) -> int:
        """Request up to `most` partitions of the round; return how many."""
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
        self._continue()
        return len(targets)

    def _begun(self) -> dict[_Target, None]:
        """The partitions without a marker; starts the round if it has not started."""
        if self._left is None:
            topics = self._broker.image.topics
            existing = (each for each in self.order.partitions if each[0] in topics)
            self._left = {_Target(topics[name].id, index): None for name, index in existing}
        if self._is_beginning:
            self._is_beginning = False
            self._to_ask = deque(target for target in self._left if target not in self._in_flight)
        return self._left

    def on_leaders_changed(self) -> None:
        late = {
            target: attempt
            for target, attempt in self._in_flight.items()
            if self._leader_of(target) != attempt.node_id
        }
        for target in late:
            del self._in_flight[target]
        if late or self._timer is not None:
            self._wait_ms = TRY_AGAIN_MS
            self.begin()

    def _is_ours(self) -> bool:
        """Whether this node still coordinates the transaction in the epoch of the order, reloaded or not."""
        transactions = self._broker.transactions
        partition = self._broker.image.partition(
            transactions.topic, transactions.partition_of(self.order.transactional_id)
        )
        return (
            partition is not None
            and partition.leader == self._broker.node_id
            and partition.leader_epoch == self.order.coordinator_epoch
            and not self._broker.is_stopping
        )

    def _leader_of(self, target: _Target) -> int | None:
        """The leader of a partition; None if the partition no longer exists and needs no marker."""
        topic = self._broker.image.topics_by_id.get(target.topic_id)
        if topic is None or not 0 <= target.partition_index < len(topic.partitions):
            return None
        return topic.partitions[target.partition_index].leader

    # Requests to one node.

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

        response = self._broker.marker_peers.ask(node_id, request, WRITE_TXN_MARKERS_VERSION, ASK_MS)
        done: Later[list[_Target]] = response.map(written).recover(RequestLost, lambda _: [])
        done.then(lambda targets: self._on_result(attempt, targets))

    def _begin(self, node_id: int, targets: list[_Target]) -> _Attempt:
        attempt = _Attempt(node_id, targets)
        self._in_flight.update(dict.fromkeys(targets, attempt))
        return attempt

    def _on_result(self, attempt: _Attempt, done: Iterable[_Target]) -> None:
        assert self._left is not None
        mine = {target for target in attempt.targets if self._in_flight.get(target) is attempt}
        for target in mine:
            del self._in_flight[target]
        for target in done:
            if target in mine:
                self._left.pop(target, None)
        if mine:
            self._continue()

    def _continue(self) -> None:
        if self._is_stopped or self._is_asking or self._left is None:
            return
        if not self._left:
            self.stop()
            self._markers.end(self)
        elif self._timer is None and not self.is_to_ask and len(self._in_flight) < len(self._left):
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
