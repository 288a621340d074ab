"""Shared by all coordinators: finding the partition of a key, and loading a shard from its log."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

from millpond.base.errors import MalformedMessage
from millpond.base.ports import Buffer
from millpond.coordinators.shard import Shard
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

GAP_MS_MAX = 60 * 60 * 1000
"""The longest gap between two batches of a coordinator's log that counts in full."""

ABORT_MARKER = 0
COMMIT_MARKER = 1

_MARKER_KEY = struct.Struct(">hh")


@runtime_checkable
class TransactionalShard(Protocol):
    """A shard whose records may belong to a producer's transaction."""

    def replay_transactional(
        self, producer_id: int, epoch: int, offset: int, key: bytes, value: bytes | None
    ) -> None:
        """Apply a record that takes effect only once its transaction is committed."""
        ...

    def replay_marker(self, producer_id: int, epoch: int, committed: bool, offset: int) -> None:
        """The producer's transaction has ended."""
        ...


KEY_LENGTH_MAX: Final = 1_000
"""The limit for a group or transactional id. Its hash is computed character by character: 32 KiB would take a
millisecond or two each time."""

HASHES_KEPT: Final = 2_000
"""Cache size: the same IDs are hashed again and again, for members and for each partition of a transaction."""


def partition_for(key: str, partitions: int) -> int:
    """The partition of the internal topic for a group or transactional id. An id that is too long has none."""
    return _absolute(_java_hash(key[:KEY_LENGTH_MAX])) % partitions


class CoordinatorTime:
    """Coordinator time: only time that the log or a running coordinator shows to have passed.

    While a log is loaded, time advances from one timestamp to the next, though never backwards and never by more than
    `GAP_MS_MAX`: a longer gap may be a clock that was set, or a node that was down. From then on it follows the
    monotonic clock. A wrong wall clock can make it too slow, never too fast, so nothing expires early.
    """

    def __init__(self, wall_ms: int) -> None:
        self._now_ms = wall_ms
        self._stamp_ms: int | None = None
        self._begun_at_ms: int | None = None

    def replayed(self, stamp_ms: int) -> int:
        """Advance to a batch with this timestamp; returns the coordinator time at which it was written."""
        if stamp_ms < 0:
            # Compaction leaves empty batches, which have no timestamp.
            return self._now_ms
        if self._stamp_ms is None:
            self._now_ms = stamp_ms
        else:
            self._now_ms += min(max(stamp_ms - self._stamp_ms, 0), GAP_MS_MAX)
        self._stamp_ms = stamp_ms
        return self._now_ms

    def now_ms(self, monotonic_ms: int) -> int:
        """The current time; the clock starts running with the first call."""
        if self._begun_at_ms is None:
            self._begun_at_ms = monotonic_ms
        return self._now_ms + monotonic_ms - self._begun_at_ms


def replay_batches(shard: Shard, data: Buffer, time: CoordinatorTime) -> int:
    """Replay every whole batch in order; returns the number of bytes replayed.

    Transactional batches and markers go to shards that support them; others ignore them.
    """
    view = memoryview(data)
    end = 0
    for position, header in walk(view):
        end = position + header.size
        shard.set_time(time.replayed(header.max_timestamp), header.max_timestamp)
        if header.is_control:
            if isinstance(shard, TransactionalShard):
                _replay_control(shard, view, position, header.producer_id, header.producer_epoch)
            continue
        for record in decode_batch(view, position):
            if record.key is None:
                raise MalformedMessage(f"a coordinator's record at offset {record.offset} has no key")
            if not header.is_transactional:
                shard.replay(record.offset, record.key, record.value)
            elif isinstance(shard, TransactionalShard):
                shard.replay_transactional(
                    header.producer_id, header.producer_epoch, record.offset, record.key, record.value
                )
    return end


def _replay_control(shard: TransactionalShard, view: memoryview, position: int, producer_id: int, epoch: int) -> None:
    for record in decode_batch(view, position):
        if record.key is None or len(record.key) < _MARKER_KEY.size:
            raise MalformedMessage(f"the control record at offset {record.offset} has no type")
        _, kind = _MARKER_KEY.unpack_from(record.key)
        # Other control records (leader changes) do not concern transactions.
        if kind in (ABORT_MARKER, COMMIT_MARKER):
            shard.replay_marker(producer_id, epoch, kind == COMMIT_MARKER, record.offset)


@lru_cache(HASHES_KEPT)
def _java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, as a signed 32-bit integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _absolute(value: int) -> int:
    """Like `abs`, but 0 for the smallest 32-bit integer, which has no positive counterpart, as in Kafka."""
    return 0 if value == -(1 << 31) else abs(value)
