"""The state of one transactional ID: an immutable value, replaced as a whole by each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.transactions.states import ALLOWED, State

EPOCH_MAX = (1 << 15) - 1
NO_ID = -1
TRANSACTIONS_V1 = 0
"""The client adds each partition itself, and keeps its epoch from one transaction to the next."""
TRANSACTIONS_V2 = 2
"""The brokers add partitions as they are written to, and every transaction raises the epoch (KIP-890)."""

TakeProducerId = Callable[[], int | None]
"""Returns an unused producer ID; None if none is available now, and the client should retry."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id and of its latest transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    previous_producer_id: int = NO_ID
    """The producer id before the latest record: it identifies the retry of a request that rotated the id."""
    next_producer_id: int = NO_ID
    """The producer ID that takes over once the markers are written, because this one's epochs are used up."""
    client_version: int = TRANSACTIONS_V1
    """The transaction protocol that the client spoke."""

    @property
    def exhausted(self) -> bool:
        return is_exhausted(self.producer_epoch)

    def is_heir(self, producer_id: int) -> bool:
        """Whether this producer already uses the producer ID that is about to take over."""
        return producer_id == self.next_producer_id != NO_ID

    def moved(self, state: State, now_ms: int) -> Transaction:
        """The same id in another state; the time of the last change never decreases, even if the clock does."""
        assert state in ALLOWED[self.state], f"{self.transactional_id}: {self.state.label} to {state.label}"
        return replace(
            self, state=state, updated_ms=max(now_ms, self.updated_ms), previous_producer_id=self.producer_id
        )


class Verdict(NamedTuple):
    """The result of a request: the error code, and the states to write, in order."""

    error: ErrorCode
    steps: tuple[Transaction, ...] = ()


def is_exhausted(epoch: int) -> bool:
    """Whether no epoch is left for the client: the last one is reserved for fencing it."""
    return epoch >= EPOCH_MAX - 1
