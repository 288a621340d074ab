"""Reading a range of one partition as whole record batches; the next are on their way while these are decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final, NamedTuple

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.base.ports import Buffer
from millpond.remote import offsets
from millpond.remote.cluster import BACKOFF_SECONDS, Cluster
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import STALE_LEADER, Answered, ClusterError, OffsetsGone
from millpond.remote.offsets import ISOLATION_LEVELS, Isolation
from millpond.wire import kernel
from millpond.wire import messages as m
from millpond.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from millpond.wire.records import decode_batch, records_section

FETCH_BYTES: Final = 4 << 20
WAIT_MS: Final = 500
PATIENCE_SECONDS: Final = 120.0
VANISHED_SECONDS: Final = 5.0
"""How long the log may be shorter than what is asked for before the rest counts as lost: a new leader learns only
with time how far the log is committed."""

_FETCH_NEWEST: Final = 12
"""The last version in which topics go by their names."""
_ABORT: Final = 0

if TYPE_CHECKING:
    _Fetched = m.FetchResponse.PartitionData


class RawBatch(NamedTuple):
    """A batch whose records are still encoded. It may begin before the range and end after it."""

    header: BatchHeader
    payload: Buffer
    """The decompressed records section."""


def read_range(
    cluster: Cluster,
    place: TopicPartition,
    start: int,
    end: int,
    *,
    isolation: Isolation = "read_uncommitted",
    fetch_bytes: int = FETCH_BYTES,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[RawBatch]:
    """Every batch with data that overlaps [start, end), in order; with read_committed, without the aborted ones.

    OffsetsGone when the log does not have the range; ClusterError when nothing comes for `patience_seconds`.
    """
    return _Range(cluster, place, start, end, isolation, fetch_bytes, patience_seconds).batches()


class _Range:
    """One walk through a range. `_at` is the offset that is asked for next."""

    def __init__(
        self,
        cluster: Cluster,
        place: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation,
        fetch_bytes: int,
        patience_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._at = start
        self._end = end
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._patience_seconds = patience_seconds
        self._deadline = time.monotonic() + patience_seconds
        self._short_since: float | None = None
        self._link: BrokerConnection | None = None

    def batches(self) -> Iterator[RawBatch]:
        try:
            while self._at < self._end:
                fetched = self._next_answer()
                if fetched is None:
                    continue
                records = _bytes_of(fetched)
                scanned = kernel.scan(records, 0, len(records), True) if records else []
                if not scanned:
                    self._nothing_came(fetched)
                    continue
                self._short_since = None
                self._deadline = time.monotonic() + self._patience_seconds
                self._at = max(self._at, scanned[-1].last_offset + 1)
                if self._at < self._end:
                    # The broker works on the next answer while the caller works on this one.
                    self._try_to_send()
                yield from self._wanted(records, scanned, fetched)
        finally:
            # An answer that nobody waits for would be taken for the next question's.
            if self._link is not None and self._link.waiting_count:
                self._link.close()

    def _next_answer(self) -> _Fetched | None:
        """The answer for `_at`; None when it has to be asked for again."""
        try:
            if self._link is None:
                self._send()
            link, self._link = self._link, None
            assert link is not None
            told = link.receive(m.FetchResponse, seconds=WAIT_MS / 1000)
            if told.error_code != ErrorCode.NONE:
                raise Answered(f"reading {self._place.topic}", told.error_code)
            fetched = told.responses[0].partitions[0]
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._check_still_there()
                self._check_patience()
                time.sleep(BACKOFF_SECONDS)
                return None
            if fetched.error_code != ErrorCode.NONE:
                raise Answered(f"reading {self._place.topic}[{self._place.partition}]", fetched.error_code)
        except IndexError:
            raise MalformedMessage("a Fetch was answered without its partition") from None
        except ClusterError as fault:
            self._cluster.forget(self._place.topic)
            if not fault.retriable or time.monotonic() > self._deadline:
                raise
            if fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._deadline = min(self._deadline, time.monotonic() + VANISHED_SECONDS)
            time.sleep(BACKOFF_SECONDS * (1 if fault.code in STALE_LEADER else 4))
            return None
        return fetched

    def _try_to_send(self) -> None:
        try:
            self._send()
        except ClusterError as fault:
            if not fault.retriable:
                raise
            self._link = None

    def _send(self) -> None:
        link = self._cluster.leader(*self._place)
        request = m.FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=max(self._fetch_bytes, 1),
            isolation_level=ISOLATION_LEVELS[self._isolation],
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=self._place.topic,
                    partitions=[
                        m.FetchRequest.FetchPartition(
                            partition=self._place.partition,
                            fetch_offset=self._at,
                            partition_max_bytes=self._fetch_bytes,
                        )
                    ],
                )
            ],
        )
        link.send(request, m.FetchResponse, newest=_FETCH_NEWEST)
        self._link = link

    def _nothing_came(self, fetched: _Fetched) -> None:
        limit = fetched.high_watermark if self._isolation == "read_uncommitted" else fetched.last_stable_offset
        now = time.monotonic()
        if limit < self._end:
            self._short_since = self._short_since or now
            if now - self._short_since > VANISHED_SECONDS:
                self._check_still_there()
        else:
            self._short_since = None
        self._check_patience(fetched.last_stable_offset)

    def _check_still_there(self) -> None:
        """OffsetsGone when the log does not have the range. What it has but does not give yet is not gone."""
        begins = offsets.earliest(self._cluster, [self._place])[self._place]
        # The end for every reader: what an open transaction hides from this one is there.
        ends = offsets.latest(self._cluster, [self._place])[self._place]
        if self._at < begins or self._end > ends:
            raise OffsetsGone(self._place, self._at if self._at < begins else self._end - 1, begins, ends)

    def _check_patience(self, last_stable_offset: int | None = None) -> None:
        if time.monotonic() <= self._deadline:
            return
        is_held_back = self._isolation == "read_committed" and last_stable_offset == self._at
        raise ClusterError(
            f"{self._place.topic}[{self._place.partition}]: nothing came from offset {self._at} on for "
            f"{self._patience_seconds:g} s, though the log has the records up to {self._end}"
            + ("; an open transaction holds them back, see millpond txn list" if is_held_back else "")
        )

    def _wanted(self, records: Buffer, scanned: list[kernel.ScannedBatch], fetched: _Fetched) -> Iterator[RawBatch]:
        committed = self._isolation == "read_committed"
        pending = [(each.first_offset, each.producer_id) for each in fetched.aborted_transactions or ()]
        heapify(pending)
        aborted: set[int] = set()
        for batch in scanned:
            while committed and pending and pending[0][0] <= batch.last_offset:
                aborted.add(heappop(pending)[1])
            if batch.attributes & CONTROL:
                if batch.producer_id in aborted and _is_abort(records, batch.position):
                    aborted.discard(batch.producer_id)
                continue
            if batch.attributes & TRANSACTIONAL and batch.producer_id in aborted:
                continue
            if batch.base_offset < self._end:
                header = read_header(records, batch.position)
                yield RawBatch(header, records_section(records, batch.position, header))


def _bytes_of(fetched: _Fetched) -> Buffer:
    records = fetched.records
    assert records is None or isinstance(records, bytes | bytearray | memoryview), "decoded records are one buffer"
    return records or b""


def _is_abort(records: Buffer, position: int) -> bool:
    marks = decode_batch(records, position)
    key = marks[0].key if marks else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _ABORT
