"""Reading a range of one partition as record batches; the next fetch is in flight while these are decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final, TypeVar

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.remote import offsets
from millpond.remote.cluster import BACKOFF_SECONDS, Cluster, by_connection
from millpond.remote.connection import BrokerConnection
from millpond.remote.errors import STALE_LEADER, Answered, ClusterError, OffsetsGone, check
from millpond.remote.offsets import ISOLATION_LEVELS, Isolation
from millpond.wire import kernel
from millpond.wire import messages as m
from millpond.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from millpond.wire.records import Record, decode_batch, records_section

FETCH_BYTES: Final = 4 << 20
WAIT_MS: Final = 500
PATIENCE_SECONDS: Final = 120.0
VANISHED_SECONDS: Final = 5.0
"""How long the log may be shorter than the requested range before the rest counts as lost: a new leader needs time
to learn the high watermark."""

FETCH_NEWEST: Final = 12
"""The last version in which topics are identified by name."""
_ABORT: Final = 0
_FETCHES_AT_ONCE: Final = 64

T = TypeVar("T")

IsUp = Callable[[int], bool]
"""Called with the next offset; True stops the search before it."""

if TYPE_CHECKING:
    _Fetched = m.FetchResponse.PartitionData
    _First = tuple[T | None, int]


def never(_: int) -> bool:
    """For readers without a time limit."""
    return False


class RawBatch(NamedTuple):
    """A batch whose records are still encoded. It may begin before the range and end after it."""

    header: BatchHeader
    payload: Buffer
    """The decompressed records section."""

    def records(self) -> list[Record]:
        header = self.header
        append_time = header.max_timestamp if header.is_append_time else None
        fields = kernel.decode_records(
            self.payload, header.record_count, header.base_offset, header.base_timestamp, append_time
        )
        return [Record._make(each) for each in fields]


def read_range(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    isolation: Isolation = "read_uncommitted",
    fetch_bytes: int = FETCH_BYTES,
    patience_seconds: float = PATIENCE_SECONDS,
    is_up: IsUp = never,
) -> Iterator[RawBatch]:
    """Every data batch that overlaps [start, end), in order; with read_committed, without aborted ones.

    `is_up` is called before each fetch, as many responses in a row may contain nothing visible. OffsetsGone if the
    log does not have the range; ClusterError if nothing arrives for `patience_seconds`.
    """
    return _Range(cluster, partition, start, end, isolation, fetch_bytes, patience_seconds).batches(is_up)


def read_records(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    isolation: Isolation = "read_uncommitted",
    is_up: IsUp = never,
) -> Iterator[Record]:
    """Every record within [start, end), one by one."""
    patience = cluster.patience_seconds
    for batch in read_range(
        cluster, partition, start, end, isolation=isolation, patience_seconds=patience, is_up=is_up
    ):
        yield from (each for each in batch.records() if start <= each.offset < end)


class Stamp(NamedTuple):
    """A record's offset and timestamp."""

    offset: int
    timestamp: int


def stamp(record: Record) -> Stamp:
    return Stamp(record.offset, record.timestamp)


def first_records(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    kept: Callable[[Record], T],
    *,
    isolation: Isolation = "read_uncommitted",
    is_up: Callable[[], bool] = lambda: False,
) -> dict[TopicPartition, T]:
    """The result of `kept` for the first record from each offset on; partitions that have none now are left out."""
    firsts = _firsts(cluster, starts, kept, isolation, is_up)
    return {each: first for each, (first, _) in firsts.items() if first is not None}


def first_or_end(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_uncommitted",
    is_up: Callable[[], bool] = lambda: False,
) -> dict[TopicPartition, Stamp | int]:
    """The first record from each offset on; if there is none now, the offset where one may appear.

    Partitions without that offset are left out, and so are those not reached before the time was up.
    """
    firsts = _firsts(cluster, starts, stamp, isolation, is_up)
    return {each: at if first is None else first for each, (first, at) in firsts.items()}


def _firsts(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    kept: Callable[[Record], T],
    isolation: Isolation,
    is_up: Callable[[], bool],
) -> dict[TopicPartition, _First[T]]:
    """Single records of many partitions: the requests go out together, and each returns one batch.

    Only the result of `kept` is held for each record, which may have many megabytes.
    """
    firsts: dict[TopicPartition, _First[T]] = {}
    left = dict(starts)

    def look() -> None:
        for connection, partitions in by_connection(left, lambda each: cluster.leader(*each), _FETCHES_AT_ONCE):
            together = _fetch_together(cluster, connection, {each: left[each] for each in partitions}, isolation)
            for partition, fetched in together:
                _note_first(partition, fetched, isolation, left, firsts, kept)

    while left and not is_up():
        cluster.retrying("read records", look)
    return firsts


def _fetch_together(
    cluster: Cluster, connection: BrokerConnection, starts: Mapping[TopicPartition, int], isolation: Isolation
) -> Iterator[tuple[TopicPartition, _Fetched]]:
    try:
        for partition, start in starts.items():
            # A broker returns the first batch whole, however little was requested.
            request = fetch_request(partition, start, isolation, fetch_bytes=1, wait_ms=0)
            connection.send(request, m.FetchResponse, newest=FETCH_NEWEST)
        for partition in starts:
            fetched = only_partition(partition, connection.receive(m.FetchResponse))
            if fetched.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                cluster.forget(partition.topic)
                raise Answered(f"reading {partition}", fetched.error_code)
            yield partition, fetched
    finally:
        if connection.waiting_count:
            connection.close()


def _note_first(
    partition: TopicPartition,
    fetched: _Fetched,
    isolation: Isolation,
    left: dict[TopicPartition, int],
    firsts: dict[TopicPartition, _First[T]],
    kept: Callable[[Record], T],
) -> None:
    """Remove the partition from `left` if its record is known or there is none; else advance its offset."""
    records = _bytes_of(fetched)
    scanned = kernel.scan(records, 0, len(records), True) if records else []
    if fetched.error_code:
        del left[partition]
        return
    if not scanned:
        firsts[partition] = None, left.pop(partition)
        return
    for batch in _visible(records, scanned, fetched, isolation):
        for record in batch.records():
            if record.offset >= left[partition]:
                firsts[partition] = kept(record), record.offset
                del left[partition]
                return
    left[partition] = scanned[-1].last_offset + 1


class _Range:
    """One pass over a range. `_at` is the next offset to fetch."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation,
        fetch_bytes: int,
        patience_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._at = start
        self._end = end
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._patience_seconds = patience_seconds
        self._deadline = time.monotonic() + patience_seconds
        self._short_since: float | None = None
        self._connection: BrokerConnection | None = None

    def batches(self, is_up: IsUp) -> Iterator[RawBatch]:
        try:
            while self._at < self._end and not is_up(self._at):
                fetched = self._next_answer()
                if fetched is None:
                    continue
                records = _bytes_of(fetched)
                scanned = kernel.scan(records, 0, len(records), True) if records else []
                if not scanned:
                    self._nothing_came(fetched)
                    continue
                self._short_since = None
                self._at = max(self._at, scanned[-1].last_offset + 1)
                if self._at < self._end:
                    # The broker works on the next response while the caller works on this one.
                    self._try_to_send()
                before_end = [each for each in scanned if each.base_offset < self._end]
                yield from _visible(records, before_end, fetched, self._isolation)
                # From now on: a slow reader may have taken hours, and the broker may have closed the connection.
                self._deadline = time.monotonic() + self._patience_seconds
        finally:
            # An unread response would be taken for that of the next request.
            if self._connection is not None and self._connection.waiting_count:
                self._connection.close()

    def _next_answer(self) -> _Fetched | None:
        """The response for `_at`; None if it must be requested again."""
        try:
            if self._connection is None:
                self._send()
            connection, self._connection = self._connection, None
            assert connection is not None
            response = connection.receive(m.FetchResponse, seconds=WAIT_MS / 1000)
            fetched = only_partition(self._partition, response)
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._check_still_there()
                self._check_patience()
                time.sleep(BACKOFF_SECONDS)
                return None
            if fetched.error_code != ErrorCode.NONE:
                raise Answered(f"reading {self._partition}", fetched.error_code)
        except ClusterError as fault:
            self._cluster.forget(self._partition.topic)
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
            self._connection = None

    def _send(self) -> None:
        connection = self._cluster.leader(*self._partition)
        request = fetch_request(
            self._partition, self._at, self._isolation, fetch_bytes=max(self._fetch_bytes, 1), wait_ms=WAIT_MS
        )
        connection.send(request, m.FetchResponse, newest=FETCH_NEWEST)
        self._connection = connection

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
        """OffsetsGone if the log does not have the range. Records that are only not visible yet are not gone."""
        begins = offsets.earliest(self._cluster, [self._partition])[self._partition]
        # The end for any reader: records hidden by an open transaction exist.
        ends = offsets.latest(self._cluster, [self._partition])[self._partition]
        if self._at < begins or self._end > ends:
            raise OffsetsGone(self._partition, self._at if self._at < begins else self._end - 1, begins, ends)

    def _check_patience(self, last_stable_offset: int | None = None) -> None:
        if time.monotonic() <= self._deadline:
            return
        is_held_back = self._isolation == "read_committed" and last_stable_offset == self._at
        raise ClusterError(
            f"{self._partition}: nothing came from offset {self._at} on for "
            f"{self._patience_seconds:g} s, though the log has the records up to {self._end}"
            + ("; an open transaction holds them back, see millpond txn list" if is_held_back else "")
        )


def fetch_request(
    partition: TopicPartition, start: int, isolation: Isolation, *, fetch_bytes: int, wait_ms: int
) -> m.FetchRequest:
    request_partition = m.FetchRequest.FetchPartition(
        partition=partition.partition, fetch_offset=start, partition_max_bytes=fetch_bytes
    )
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=fetch_bytes,
        isolation_level=ISOLATION_LEVELS[isolation],
        topics=[m.FetchRequest.FetchTopic(topic=partition.topic, partitions=[request_partition])],
    )


def only_partition(partition: TopicPartition, response: m.FetchResponse) -> _Fetched:
    check(response.error_code, f"reading {partition.topic}")
    try:
        return response.responses[0].partitions[0]
    except IndexError:
        raise MalformedMessage("a Fetch was answered without its partition") from None


def _visible(
    records: Buffer, scanned: list[kernel.ScannedBatch], fetched: _Fetched, isolation: Isolation
) -> Iterator[RawBatch]:
    """The data batches; with read_committed, without aborted ones."""
    committed = isolation == "read_committed"
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
