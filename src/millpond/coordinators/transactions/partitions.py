"""The partitions of an open transaction: adding them, and verifying them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions.states import DECIDED, State
from millpond.coordinators.transactions.transaction import EPOCH_MAX, Transaction, Verdict


def add(
    current: Transaction | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Verdict:
    """Add partitions to the transaction; the first ones begin it."""
    error = _writer_fault(current, producer_id, epoch)
    if error or current is None:
        return Verdict(error)
    requested = frozenset(partitions)
    if current.state is State.ONGOING:
        if requested <= current.partitions:
            return Verdict(ErrorCode.NONE)
        grown = current.moved(State.ONGOING, now_ms)
        return Verdict(ErrorCode.NONE, (replace(grown, partitions=current.partitions | requested),))
    begun = replace(
        current.moved(State.ONGOING, now_ms), partitions=requested, start_ms=now_ms, client_version=client_version
    )
    return Verdict(ErrorCode.NONE, (begun,))


def membership(
    current: Transaction | None, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """For each partition, NONE if it is in the open transaction of this producer."""
    error = _writer_fault(current, producer_id, epoch)
    if error or current is None:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.NONE if partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def _writer_fault(current: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    if current is not None and current.is_heir(producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current is None or current.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # The very last epoch is for fencing; a client that sends it did not get it from here.
    if current.producer_epoch != epoch or epoch == EPOCH_MAX:
        return ErrorCode.PRODUCER_FENCED
    if current.state in DECIDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE
