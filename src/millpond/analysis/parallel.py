"""Read ranges on several threads into Arrow batches, as fast as they are taken and not faster.

The records of a partition come in order; partitions come as they are ready. A thread has its own connections, decodes
and parses. At most `BATCHES_WAITING_MAX` batches of about four megabytes wait for the caller.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millpond.analysis.errors import RecordsGone
from millpond.analysis.layout import Layout
from millpond.analysis.ranges import OffsetRange
from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.columns.batches import arrow_batches
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, OffsetsGone, UnknownTopic
from millpond.remote.offsets import Isolation
from millpond.remote.reader import RawBatch, read_range

THREADS_MAX: Final = 4
BATCHES_WAITING_MAX: Final = 8
LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a read is. Offsets without a record, such as those of transaction markers, count."""

    rows: int
    offsets_read: int
    offsets_total: int


@dataclass(slots=True)
class _Piece:
    batch: pa.RecordBatch | None
    offsets: int
    """How many offsets further its range is now."""


@dataclass(slots=True)
class _Finished:
    """A thread has nothing left to do."""


@dataclass(slots=True, eq=False)
class ParallelReader:
    settings: Mapping[str, str]
    ranges: Sequence[OffsetRange]
    layout: Layout
    isolation: Isolation
    threads: int = THREADS_MAX
    _left: deque[OffsetRange] = field(init=False)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _pieces: queue.Queue[_Piece | _Finished | BaseException] = field(
        default_factory=lambda: queue.Queue(BATCHES_WAITING_MAX)
    )

    def __post_init__(self) -> None:
        self._left = deque(self.ranges)

    def batches(self) -> Iterator[tuple[pa.RecordBatch | None, Progress]]:
        """Each batch with the progress so far; None where only the progress changed. Closing it ends the threads."""
        running = min(self.threads, len(self.ranges))
        total = sum(each.size for each in self.ranges)
        rows = read = 0
        for number in range(running):
            threading.Thread(target=self._work, name=f"millpond-read-{number}", daemon=True).start()
        try:
            while running:
                # With a timeout, so that Ctrl-C is noticed everywhere.
                try:
                    piece = self._pieces.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    continue
                match piece:
                    case _Finished():
                        running -= 1
                    case BaseException():
                        raise piece
                    case _Piece(batch, offsets):
                        rows += batch.num_rows if batch is not None else 0
                        read += offsets
                        yield batch, Progress(rows, read, total)
        finally:
            self._stopped.set()

    def _work(self) -> None:
        last: _Finished | BaseException = _Finished()
        try:
            with Cluster(self.settings) as cluster:
                while not self._stopped.is_set():
                    try:
                        each = self._left.popleft()
                    except IndexError:
                        break
                    self._read(cluster, each)
        except BaseException as fault:
            # It belongs to the thread that takes the batches.
            last = fault
        self._offer(last)

    def _read(self, cluster: Cluster, each: OffsetRange) -> None:
        reached = each.start
        for records in arrow_batches(
            self._raw(cluster, each), each.partition, each.end, with_headers=self.layout.with_headers
        ):
            further = records.column("offset")[records.num_rows - 1].as_py() + 1
            for batch in self.layout.batches(records):
                if not self._offer(_Piece(batch, 0)):
                    return
            self._offer(_Piece(None, further - reached))
            reached = further
        if not self._stopped.is_set():
            self._check_same(cluster, each)
            self._offer(_Piece(None, each.end - reached))

    def _raw(self, cluster: Cluster, each: OffsetRange) -> Iterator[tuple[int, RawBatch]]:
        patience, topic = cluster.patience_seconds, each.partition.topic
        try:
            for batch in read_range(
                cluster,
                each.partition,
                each.start,
                each.end,
                isolation=self.isolation,
                patience_seconds=patience,
                is_up=lambda _: self._stopped.is_set(),
            ):
                yield each.start, batch
        except OffsetsGone as gone:
            self._check_same(cluster, each)
            raise RecordsGone.trimmed(each.partition, gone.requested, gone.earliest) from gone
        except ClientError as fault:
            if isinstance(fault, UnknownTopic) or fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise RecordsGone.deleted(topic) from fault
            raise

    def _check_same(self, cluster: Cluster, each: OffsetRange) -> None:
        """A topic of the same name may be another one by now."""
        topic = each.partition.topic
        info = cluster.topics([topic]).get(topic)
        if info is None:
            raise RecordsGone.deleted(topic)
        if NO_TOPIC_ID not in (info.topic_id, each.topic_id) and info.topic_id != each.topic_id:
            raise RecordsGone.recreated(topic)

    def _offer(self, piece: _Piece | _Finished | BaseException) -> bool:
        """Wait for room. False if nobody takes batches any more."""
        while not self._stopped.is_set():
            try:
                self._pieces.put(piece, timeout=LOOK_SECONDS)
                return True
            except queue.Full:
                continue
        return False
