"""The markers that end transactions: written into every partition, until all of them have it.

Only a topic that the image no longer has needs none. A partition that is merely not open here is tried again for as
long as it takes: skipped, it would keep the transaction open for ever, or give its records another outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, end_all, failed, gather
from millpond.broker.coordination import Producer
from millpond.broker.partitions import Partition

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.broker.coordination import Coordination
    from millpond.broker.flusher import Flusher
    from millpond.broker.partitions import Partitions
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


class _Target(NamedTuple):
    """A partition by its topic's id: another topic of the same name is not meant."""

    topic_id: UUID
    partition_index: int


class MarkerNeeds(Protocol):
    """What writing markers needs of a broker."""

    clock: Clock
    partitions: Partitions
    flusher: Flusher
    groups: Coordination[GroupShard]
    transactions: Coordination[TransactionShard]
    is_stopping: bool

    @property
    def image(self) -> Image: ...


class Markers:
    """Carries out the orders of the transaction coordinators of this node."""

    def __init__(self, broker: MarkerNeeds) -> None:
        self._broker = broker
        self._orders: dict[str, WriteMarkers] = {}
        """What is under way, by transactional id."""
        self._waiting: dict[str, dict[Later[None], None]] = {}

    def carry_out(self, order: WriteMarkers) -> None:
        """Write the markers, and tell the coordinator when all of them are committed."""
        if self._orders.get(order.transactional_id) == order:
            # A coordinator that was loaded again orders what is under way already.
            return
        self._orders[order.transactional_id] = order
        topics = self._broker.image.topics
        targets = [_Target(topics[name].id, index) for name, index in order.partitions if name in topics]
        self._write(order, targets, TRY_AGAIN_MS)

    def _write(self, order: WriteMarkers, targets: list[_Target], wait_ms: int) -> None:
        def go_on(are_done: list[bool]) -> None:
            left = [target for target, is_done in zip(targets, are_done, strict=True) if not is_done]
            if not left:
                self._end(order)
            else:
                next_ms = min(2 * wait_ms, TRY_AGAIN_MS_MAX)
                self._broker.clock.call_later(wait_ms, lambda: self._write_again(order, left, next_ms))

        gather([self._is_done(order, target) for target in targets]).then(go_on)

    def _write_again(self, order: WriteMarkers, targets: list[_Target], wait_ms: int) -> None:
        if self._orders.get(order.transactional_id) is order and not self._broker.is_stopping:
            self._write(order, targets, wait_ms)

    def _is_done(self, order: WriteMarkers, target: _Target) -> Later[bool]:
        """Whether this partition needs no marker any more."""
        topic = self._broker.image.topics_by_id.get(target.topic_id)
        if topic is None or not 0 <= target.partition_index < len(topic.partitions):
            return done(True)
        partition = self._broker.partitions.by_id(*target)
        if partition is None:
            return done(False)
        producer = Producer(order.producer_id, order.producer_epoch)
        written = self.write(partition, producer, order.committed, order.coordinator_epoch, order.transaction_version)
        return written.map(lambda _: True).recover(Refused, lambda refused: refused.code in OVERTAKEN)

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
            home = self._broker.groups.home_at(partition.name.partition)
            if home is not None:
                home.on_marker(producer, committed, appended.first_offset)
        if not partition.acknowledges_after_sync:
            return done(None)
        synced = self._broker.flusher.after_sync(partition.log, appended.last_offset + 1, None)
        return synced.recover(OSError, _refuse)

    def _end(self, order: WriteMarkers) -> None:
        if self._orders.get(order.transactional_id) is order:
            del self._orders[order.transactional_id]
        try:
            home = self._broker.transactions.home_of(order.transactional_id)
        except Refused:
            # It has resigned meanwhile. Loaded again it finds the transaction decided, and orders markers once more.
            pass
        else:
            home.run(
                lambda shard, now_ms: shard.markers_written(
                    order.transactional_id, order.producer_id, order.producer_epoch, now_ms
                )
            )
        end_all(self._waiting.pop(order.transactional_id, {}).items())

    # For those who come before the markers are written.

    def under_way(self, transactional_id: str) -> bool:
        return transactional_id in self._orders

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


def _refuse(error: OSError) -> None:
    raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
