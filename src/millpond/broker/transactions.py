"""The homes of transaction coordinators, and the markers that they order.

Imported when the first transactional producer appears: a node without transactions starts faster without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.broker.coordination import Home, Producer
from millpond.broker.partitions import Partition
from millpond.config import node
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard, WriteMarkers

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

DoneWithMarker = Callable[[Refused | None], None]

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
    left = len(order.partitions)
    failed = False

    def one_done(refused: Refused | None) -> None:
        nonlocal left, failed
        left -= 1
        # A marker that a newer coordinator or producer has overtaken is not needed any more.
        failed = failed or (refused is not None and refused.code not in OVERTAKEN)
        if left:
            return
        if failed:
            broker.clock.call_later(TRY_AGAIN_MS, lambda: _again(broker, order))
        else:
            _tell_coordinator(broker, order)

    producer = Producer(order.producer_id, order.producer_epoch)
    for place in order.partitions:
        write_marker(
            broker, place, producer, order.committed, order.coordinator_epoch, order.transaction_version, one_done
        )


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
    done: DoneWithMarker,
) -> None:
    """Write how a transaction ended into one partition; `done` once that is safe.

    A topic that was deleted meanwhile needs no marker.
    """
    partition = broker.partitions.get(*place)
    if partition is None:
        done(None)
        return
    try:
        appended = partition.append_marker(
            producer.id, producer.epoch, committed, coordinator_epoch, transaction_version
        )
    except Refused as refused:
        done(refused)
        return
    if place.topic == broker.groups.topic:
        home = broker.groups.home_at(place.partition)
        if home is not None:
            home.on_marker(producer, committed, appended.first_offset)
    if partition.acknowledges_after_sync:
        broker.flusher.after_sync(
            partition.log,
            appended.last_offset + 1,
            lambda error: done(None if error is None else Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))),
        )
    else:
        done(None)
