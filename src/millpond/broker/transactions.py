"""The homes of transaction coordinators, and the markers that they order.

Imported when the first transactional producer appears: a node without transactions starts faster without it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.base.later import Later, done, failed, gather
from millpond.broker.coordination import Home, Producer
from millpond.broker.partitions import Partition
from millpond.config import node
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard, WriteMarkers

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

OVERTAKEN = frozenset(
    {ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)

TRY_AGAIN_MS = 1000
"""How long to wait before markers are tried again that a partition could not take."""


def transaction_home(broker: Broker, partition: Partition) -> Home[TransactionShard]:
    settings = TransactionSettings(
        timeout_ms_max=broker.settings[node.TRANSACTION_MAX_TIMEOUT_MS],
        id_expiration_ms=broker.settings[node.TRANSACTIONAL_ID_EXPIRATION_MS],
    )
    shard = TransactionShard(
        settings,
        partition.leader_epoch,
        broker.producer_ids.take,
        lambda group_id: broker.groups.partition_of(group_id),
    )
    return Home(shard, partition, broker.clock, broker.flusher, partial(carry_out, broker))


def carry_out(broker: Broker, order: WriteMarkers) -> None:
    """Write the markers, and tell the coordinator when all of them are safe; what fails is tried again."""

    def is_done(partition: TopicPartition) -> Later[bool]:
        written = write_marker(
            broker, partition, producer, order.committed, order.coordinator_epoch, order.transaction_version
        )
        # A marker that a newer coordinator or producer has overtaken is not needed any more.
        return written.map(lambda _: True).recover(Refused, lambda refused: refused.code in OVERTAKEN)

    def go_on(are_done: list[bool]) -> None:
        if all(are_done):
            _tell_coordinator(broker, order)
        else:
            broker.clock.call_later(TRY_AGAIN_MS, lambda: _again(broker, order))

    producer = Producer(order.producer_id, order.producer_epoch)
    gather([is_done(each) for each in order.partitions]).then(go_on)


def _again(broker: Broker, order: WriteMarkers) -> None:
    if not broker.is_stopping:
        carry_out(broker, order)


def _tell_coordinator(broker: Broker, order: WriteMarkers) -> None:
    try:
        home = broker.transactions.home_of(order.transactional_id)
    except Refused:
        # Its log has failed meanwhile. Whoever loads it next finds the transaction decided, and orders markers again.
        return
    home.run(
        lambda shard, now_ms: shard.markers_written(
            order.transactional_id, order.producer_id, order.producer_epoch, now_ms
        )
    )


def write_marker(
    broker: Broker,
    place: TopicPartition,
    producer: Producer,
    committed: bool,
    coordinator_epoch: int,
    transaction_version: int,
) -> Later[None]:
    """Write how a transaction ended into one partition; ends once that is safe, Refused if it cannot be.

    A topic that was deleted meanwhile needs no marker.
    """
    partition = broker.partitions.get(*place)
    if partition is None:
        return done(None)
    try:
        appended = partition.append_marker(
            producer.id, producer.epoch, committed, coordinator_epoch, transaction_version
        )
    except Refused as refused:
        return failed(refused)
    if place.topic == broker.groups.topic:
        home = broker.groups.home_at(place.partition)
        if home is not None:
            home.on_marker(producer, committed, appended.first_offset)
    if not partition.acknowledges_after_sync:
        return done(None)
    synced = broker.flusher.after_sync(partition.log, appended.last_offset + 1, None)
    return synced.recover(OSError, _refuse)


def _refuse(error: OSError) -> None:
    raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
