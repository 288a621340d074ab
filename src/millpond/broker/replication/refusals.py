"""Batches that a partition refused for now, so that the batches behind them get the same answer.

A producer has several batches in flight. When one is refused for a transient reason, those behind it look out of
order. A client that gets OUT_OF_ORDER_SEQUENCE_NUMBER bumps its epoch and resends everything not known to be written,
which duplicates records. A client that gets the first batch's error instead resends all of them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import TOPIC_NAME_LENGTH_MAX
from millpond.base.named_tuple import NamedTuple
from millpond.wire.batch import HEADER_BYTES, BatchHeader, read_header

if TYPE_CHECKING:
    from millpond.base.ports import Buffer, Clock
    from millpond.log.partition_log import PartitionLog

TRANSIENT: Final = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)

WAIT_MS: Final = 10_000
"""How long after its last refusal a batch may be retried; later batches are then refused as out of order."""

PRODUCERS_MAX: Final = 1_000

UNOPENED_MAX: Final = 1_000
"""Limit on unopened partitions remembered, and on producers of each."""


class _Refusal(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    since_ms: int


class Refusals:
    """The refusals of one partition: by producer, the first batch of its epoch that has not been written since."""

    __slots__ = ("_clock", "_log", "by_producer")

    def __init__(self, log: PartitionLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.by_producer: dict[int, _Refusal] | None = None
        """None until the first one: few partitions ever have any."""

    def note(self, records: Buffer | None, code: ErrorCode) -> None:
        """A batch was refused that its producer sends again, perhaps here: no later one may be written before it."""
        if records is not None and len(records) >= HEADER_BYTES:
            header = read_header(records)
            self._log.producers.note_unwritten((header,))
            self._remember(header, code)

    def note_unpermitted(self, records: Buffer | None, code: ErrorCode) -> None:
        """A batch was refused because the coordinator of its transaction could not be asked."""
        if code in TRANSIENT and records is not None and len(records) >= HEADER_BYTES:
            self._remember(read_header(records), code)

    def _remember(self, header: BatchHeader, code: ErrorCode) -> None:
        if header.producer_id < 0:
            return
        if self.by_producer is None:
            self.by_producer = {}
        now_ms = self._clock.monotonic_ms()
        earlier = self.by_producer.pop(header.producer_id, None)
        sequence = header.base_sequence
        if earlier is not None and _is_awaited(earlier, header.producer_epoch, now_ms):
            # The producer is still retrying, however long the outage takes: only its last refusal counts.
            sequence = min(sequence, earlier.sequence)
        self.by_producer[header.producer_id] = _Refusal(header.producer_epoch, sequence, code, now_ms)
        if len(self.by_producer) > PRODUCERS_MAX:
            del self.by_producer[next(iter(self.by_producer))]

    def before(self, records: Buffer) -> ErrorCode | None:
        """Why an earlier batch was refused, if the producer may still retry it."""
        if not self.by_producer:
            return None
        header = read_header(records)
        refusal = self.by_producer.get(header.producer_id)
        if refusal is None or not _is_awaited(refusal, header.producer_epoch, self._clock.monotonic_ms()):
            return None
        return refusal.code if refusal.sequence < header.base_sequence else None

    def on_written(self, records: Buffer) -> None:
        if not self.by_producer:
            return
        header = read_header(records)
        refusal = self.by_producer.get(header.producer_id)
        if refusal is not None and (refusal.epoch, refusal.sequence) <= (header.producer_epoch, header.base_sequence):
            del self.by_producer[header.producer_id]


def _is_awaited(refusal: _Refusal, epoch: int, now_ms: int) -> bool:
    return refusal.epoch == epoch and now_ms - refusal.since_ms < WAIT_MS


class UnopenedRefusals:
    """The first batch of each producer that was refused because its partition was not open yet."""

    def __init__(self) -> None:
        self._headers: dict[tuple[str | UUID, int], dict[int, BatchHeader]] = {}

    def note(self, topic: str | UUID, index: int, records: Buffer | None) -> None:
        """Note a batch for a partition that is not open here but may be soon."""
        if records is None or len(records) < HEADER_BYTES:
            return
        if isinstance(topic, str) and len(topic) > TOPIC_NAME_LENGTH_MAX:
            return
        header = read_header(records)
        by_producer = self._headers.setdefault((topic, index), {})
        if header.producer_id >= 0 and len(by_producer) < UNOPENED_MAX:
            by_producer.setdefault(header.producer_id, header)
        if len(self._headers) > UNOPENED_MAX:
            del self._headers[next(iter(self._headers))]

    def take(self, name: str, topic_id: UUID, index: int) -> list[BatchHeader]:
        """The batches of a partition that has been opened."""
        if not self._headers:
            return []
        return [header for key in (name, topic_id) for header in self._headers.pop((key, index), {}).values()]
