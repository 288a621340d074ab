"""Batches that a leader could not take for now, so that those behind them hear the same.

A producer has several batches under way. When one is refused for a reason that passes, those behind it seem to come
out of order. Told so, clients begin a new epoch and send again under it what they do not know to be written: it is
there twice then. Told the same as the one before them, they send all of them again, in order.
"""

from __future__ import annotations

from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.wire.batch import BatchHeader

PASSING: Final = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)

WAIT_MS: Final = 10_000
"""How long after its last refusal a batch may be retried; later batches are then refused as out of order."""

PRODUCERS_MAX: Final = 1_000


class _Refusal(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    since_ms: int


class Refusals:
    """Of one partition, by producer: the first batch of its epoch that was refused and has not been written since."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refusal] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def note(self, header: BatchHeader, code: ErrorCode, now_ms: int) -> None:
        if header.producer_id < 0:
            return
        earlier = self._by_producer.pop(header.producer_id, None)
        sequence = header.base_sequence
        if earlier is not None and _is_waited_for(earlier, header.producer_epoch, now_ms):
            # The producer is still retrying, however long the outage takes: only its last refusal counts.
            sequence = min(sequence, earlier.sequence)
        self._by_producer[header.producer_id] = _Refusal(header.producer_epoch, sequence, code, now_ms)
        if len(self._by_producer) > PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]

    def before(self, header: BatchHeader, now_ms: int) -> ErrorCode | None:
        """Why a batch before this one was refused, if that may still come again."""
        known = self._by_producer.get(header.producer_id)
        if known is None or not _is_waited_for(known, header.producer_epoch, now_ms):
            return None
        return known.code if known.sequence < header.base_sequence else None

    def on_written(self, header: BatchHeader) -> None:
        known = self._by_producer.get(header.producer_id)
        if known is not None and (known.epoch, known.sequence) <= (header.producer_epoch, header.base_sequence):
            del self._by_producer[header.producer_id]


def _is_waited_for(known: _Refusal, epoch: int, now_ms: int) -> bool:
    return known.epoch == epoch and now_ms - known.since_ms < WAIT_MS
