"""What the tests of a log share: batches, a data folder on the simulated disk, jobs run on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.base.ports import Disk
from millpond.log.limits import LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.removal import RemovalJob
from millpond.log.store import LogStore
from millpond.sim.world.disk import SimDisk
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch

NOW_MS = 1_700_000_000_000
TP = TopicPartition("pond", 0)
TOPIC_ID = UUID(int=7)
FOLDER = "/data"


class Dice:
    """Entropy from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128))

    def below(self, bound: int) -> int:
        return self.random.randrange(bound)


@dataclass
class LogHarness:
    """A data folder with one partition, and the plain things that tests do to it."""

    disk: Disk = field(default_factory=SimDisk)
    limits: LogLimits = field(default_factory=lambda: LogLimits(segment_bytes=1000, index_interval_bytes=150))
    folder: str = FOLDER
    tp: TopicPartition = TP
    now_ms: int = NOW_MS
    topic_id: UUID = TOPIC_ID
    opened: LogStore | None = None
    stores: int = 0

    def store(self) -> LogStore:
        self.stores += 1
        return LogStore(self.disk, self.folder, self.limits, Dice(self.stores))

    def open(self) -> tuple[LogStore, PartitionLog]:
        """Open the folder; the partition is made if it is not there."""
        store = self.store()
        report = store.open(self.now_ms)
        assert not report.failed, report.failed
        self.opened = store
        return store, store.create(self.tp, self.topic_id)

    def delete_before(self, log: PartitionLog, offset: int) -> None:
        """Move the start forward, for good."""
        log.delete_before(offset)
        assert self.opened is not None
        self.opened.checkpoint()

    def cut(self, log: PartitionLog, offset: int, *, is_new_start: bool = False) -> None:
        """Cut the log back, as a follower does."""
        truncation = log.begin_truncation(offset, is_new_start=is_new_start)
        assert self.opened is not None
        self.opened.checkpoint()
        error = None
        try:
            truncation.run()
        except OSError as fault:
            error = fault
        log.finish_truncation(truncation, error)

    @property
    def partition(self) -> str:
        return f"{self.folder}/{self.tp.folder}"

    def batch(
        self, *values: bytes, key: bytes | None = b"k", timestamp: int | None = None, **fields: object
    ) -> memoryview:
        stamp = self.now_ms if timestamp is None else timestamp
        records = [Record(n, stamp, key, value) for n, value in enumerate(values)]
        return memoryview(bytearray(encode_batch(records, **fields)))  # type: ignore[arg-type]

    def append(self, log: PartitionLog, *values: bytes, epoch: int = 0, **fields: object) -> int:
        """The first offset of a batch of these values."""
        batch = self.batch(*values, **fields)  # type: ignore[arg-type]
        return log.append(batch, leader_epoch=epoch, now_ms=self.now_ms).first_offset

    def fill(self, log: PartitionLog, count: int, start: int = 0) -> None:
        for number in range(start, start + count):
            self.append(log, b"value-%d" % number)

    @staticmethod
    def remove(job: RemovalJob) -> None:
        assert job.begin()
        job.run()
        job.end(is_done=True)

    @staticmethod
    def sync(log: PartitionLog) -> None:
        ticket = log.sync_target()
        ticket.run()
        log.synced(ticket)

    @staticmethod
    def sync_or_fail(log: PartitionLog) -> None:
        """As the broker does: the log hears of a sync that failed."""
        ticket = log.sync_target()
        try:
            ticket.run()
        except OSError as fault:
            log.fail(fault, ticket)
        else:
            log.synced(ticket)

    @staticmethod
    def records(log: PartitionLog, start: int | None = None) -> list[Record]:
        """Every record that a consumer would get."""
        offset = log.start_offset if start is None else start
        found: list[Record] = []
        while offset < log.end_offset:
            data = log.read_batches(offset, 1 << 20)
            if not data:
                break
            for position, header in walk(data):
                found += [record for record in decode_batch(data, position) if record.offset >= offset]
                offset = header.next_offset
        return found

    def values(self, log: PartitionLog) -> dict[int, bytes | None]:
        return {record.offset: record.value for record in self.records(log)}


@pytest.fixture
def harness() -> LogHarness:
    return LogHarness()


@pytest.fixture(scope="session")
def make_pond() -> Callable[..., LogHarness]:
    return LogHarness


@pytest.fixture
def sim(harness: LogHarness) -> SimDisk:
    assert isinstance(harness.disk, SimDisk)
    return harness.disk
