"""How a transaction ends: by EndTxn, by its timeout or by a new producer, and its completion after the markers.

With transactions v2 every end raises the epoch. So a late request has an old epoch: it is answered as a retry or
refused, but never decides the next transaction. With v1 the epoch stays the same, and a late EndTxn looks like a
timely one: the coordinator cannot tell them apart.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.base.errors import ErrorCode
from millpond.coordinators.transactions.states import DECIDED, RESTING, State
from millpond.coordinators.transactions.transaction import (
    EPOCH_MAX,
    NO_ID,
    TRANSACTIONS_V2,
    TakeProducerId,
    Transaction,
    Verdict,
)


def end(
    current: Transaction | None,
    producer_id: int,
    epoch: int,
    committed: bool,
    client_version: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Verdict:
    """EndTxn. NONE without steps means that the transaction had already ended with this outcome."""
    if current is None:
        return Verdict(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if _is_retry(current, producer_id, epoch):
        return _answer_again(current, committed)
    if current.is_heir(producer_id):
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.producer_id != producer_id:
        return Verdict(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != epoch or epoch == EPOCH_MAX:
        return Verdict(ErrorCode.PRODUCER_FENCED)
    raises_epoch = client_version >= TRANSACTIONS_V2
    if current.state is not State.ONGOING:
        if current.state in DECIDED and current.client_version >= TRANSACTIONS_V2:
            # This ends the next transaction, before the markers of the current one are written.
            return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
        if not raises_epoch:
            return _answer_again(current, committed)
        # The client cannot know whether a broker added a partition for it, so it may abort what never began.
        if committed or current.state not in RESTING:
            return Verdict(ErrorCode.INVALID_TXN_STATE)
    next_producer_id = NO_ID
    if raises_epoch and current.exhausted:
        taken = take_producer_id()
        if taken is None:
            return Verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        next_producer_id = taken
    prepared = replace(
        current.moved(State.PREPARE_COMMIT if committed else State.PREPARE_ABORT, now_ms),
        producer_epoch=epoch + 1 if raises_epoch else epoch,
        next_producer_id=next_producer_id,
        client_version=client_version,
        start_ms=current.start_ms if current.state is State.ONGOING else now_ms,
    )
    return Verdict(ErrorCode.NONE, _with_completion(prepared, now_ms))


def fence(current: Transaction, now_ms: int, take_producer_id: TakeProducerId) -> Verdict:
    """Abort an ongoing transaction on the coordinator's initiative; the raised epoch fences the client."""
    next_producer_id = NO_ID
    if current.exhausted:
        taken = take_producer_id()
        if taken is None:
            return Verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        next_producer_id = taken
    fenced = replace(
        current.moved(State.PREPARE_EPOCH_FENCE, now_ms),
        producer_epoch=current.producer_epoch + 1,
        next_producer_id=next_producer_id,
    )
    return Verdict(ErrorCode.NONE, _with_completion(fenced.moved(State.PREPARE_ABORT, now_ms), now_ms))


def complete(current: Transaction, now_ms: int) -> Transaction:
    """The state after all markers are written."""
    is_commit = current.state is State.PREPARE_COMMIT
    done = replace(
        current.moved(State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT, now_ms), partitions=frozenset()
    )
    if current.next_producer_id == NO_ID:
        return done
    return replace(done, producer_id=current.next_producer_id, producer_epoch=0, next_producer_id=NO_ID)


def _with_completion(prepared: Transaction, now_ms: int) -> tuple[Transaction, ...]:
    """Complete at once if there are no partitions, and so no markers to wait for."""
    return (prepared,) if prepared.partitions else (prepared, complete(prepared, now_ms))


def _is_retry(current: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether this is a retry of the end that was just decided (v2)."""
    if current.client_version < TRANSACTIONS_V2 or current.state in (State.EMPTY, State.ONGOING):
        return False
    if producer_id == current.producer_id:
        return epoch == current.producer_epoch - 1
    # The end used up the last epoch, and a new producer id has taken over.
    rotated = producer_id == current.previous_producer_id and current.producer_epoch == 0
    return rotated and epoch == EPOCH_MAX - 1


def _answer_again(current: Transaction, committed: bool) -> Verdict:
    match current.state:
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            is_same = committed == (current.state is State.PREPARE_COMMIT)
            return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE)
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
            is_same = committed == (current.state is State.COMPLETE_COMMIT)
            return Verdict(ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE)
        case _:
            return Verdict(ErrorCode.INVALID_TXN_STATE)
