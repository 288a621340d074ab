"""InitProducerId with a transactional ID: the newest producer gets a new epoch, which fences all older ones."""

from __future__ import annotations

from dataclasses import replace

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.transactions.outcome import fence
from millpond.coordinators.transactions.states import DECIDED, State
from millpond.coordinators.transactions.transaction import (
    NO_ID,
    TRANSACTIONS_V1,
    TakeProducerId,
    Transaction,
    Verdict,
    is_exhausted,
)


class Shown(NamedTuple):
    """The producer id and epoch that a producer sends to continue with a higher epoch (version 3+)."""

    producer_id: int
    epoch: int


class Renewal(NamedTuple):
    """The epoch that a producer last sent, while it may not have received the response.

    It is not in the log: a retry that reaches another coordinator is fenced, as in Kafka.
    """

    shown_epoch: int
    answered: bool
    """Whether its epoch has been raised; otherwise its open transaction is still being aborted."""


def begin(transactional_id: str, timeout_ms: int, now_ms: int, take_producer_id: TakeProducerId) -> Verdict:
    """The first use of this id."""
    producer_id = take_producer_id()
    if producer_id is None:
        return Verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return Verdict(ErrorCode.NONE, (Transaction(transactional_id, producer_id, 0, timeout_ms, now_ms),))


def renew(
    current: Transaction,
    timeout_ms: int,
    shown: Shown | None,
    renewal: Renewal | None,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Verdict:
    """Raise the epoch of a known id. An ongoing transaction is aborted first, and the client retries."""
    if shown is not None and not _may_go_on(current, shown):
        return Verdict(ErrorCode.PRODUCER_FENCED)
    if current.state in DECIDED:
        return Verdict(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.state is State.ONGOING:
        # A zombie with an older epoch must not abort the transaction of its successor.
        if shown is not None and shown.epoch != current.producer_epoch:
            return Verdict(ErrorCode.PRODUCER_FENCED)
        fenced = fence(current, now_ms, take_producer_id)
        # The raised epoch is only for the abort markers; the client retries and gets the next one.
        return fenced if fenced.error else Verdict(ErrorCode.CONCURRENT_TRANSACTIONS, fenced.steps)
    rested = replace(
        current.moved(State.EMPTY, now_ms),
        timeout_ms=timeout_ms,
        start_ms=-1,
        client_version=TRANSACTIONS_V1,
        next_producer_id=NO_ID,
    )
    if shown is not None and shown.epoch != current.producer_epoch:
        if renewal is None or renewal.shown_epoch != shown.epoch:
            return Verdict(ErrorCode.PRODUCER_FENCED)
        if renewal.answered:
            # The response was lost. No other producer has registered since, or this renewal would have been dropped.
            unchanged = replace(rested, previous_producer_id=current.previous_producer_id)
            return Verdict(ErrorCode.NONE, (unchanged,))
    if not current.exhausted:
        return Verdict(ErrorCode.NONE, (replace(rested, producer_epoch=current.producer_epoch + 1),))
    producer_id = take_producer_id()
    if producer_id is None:
        return Verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return Verdict(ErrorCode.NONE, (replace(rested, producer_id=producer_id, producer_epoch=0),))


def _may_go_on(current: Transaction, shown: Shown) -> bool:
    """Whether the sender may be the latest producer; its epoch is checked later."""
    if shown.producer_id == current.producer_id or current.is_heir(shown.producer_id):
        return True
    return shown.producer_id == current.previous_producer_id and is_exhausted(shown.epoch)
