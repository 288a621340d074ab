"""A partition: what it rejects, which waiters it wakes, what a reader gets; and the table of all partitions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import ME, partition_context, view
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import TopicPartition
from millpond.broker.apis import k23_offset_for_leader_epoch
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.requests.call import Call
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.log.limits import LogLimits
from millpond.log.partition_log import RANGES_MAX, PartitionLog
from millpond.log.store import LogStore
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.wire import messages as m
from millpond.wire.batch import walk

LAYERS = NodeLayers(node_settings({}))
TOPIC_ID = UUID(int=7)


class Watching:
    """A watcher that waits for records and counts its wakeups; it is removed after one, unless it stays."""

    def __init__(self, partition: Partition, *, leaves: bool = False) -> None:
        self.woken = self.dismissed = 0
        self._partition = partition
        self._leaves = leaves
        partition.watchers[self] = None

    def on_append(self, partition: Partition, size: int) -> None:
        assert partition is self._partition
        assert size > 0
        self.woken += 1
        if self._leaves:
            del self._partition.watchers[self]

    def answer(self) -> None:
        self.dismissed += 1


class PartitionHost:
    def __init__(self, make_batch: Callable[..., memoryview], limits: LogLimits | None = None) -> None:
        self.disk = SimDisk()
        self.disk.files_limit = 1000
        self.store = LogStore(self.disk, "/data", limits or LogLimits(), SeededEntropy(1))
        self.store.open(0)
        self.batch = make_batch
        self.flushed: list[PartitionLog] = []
        self.clock = VirtualClock()
        self.has_lease = True
        self.partition = self.make("pond", 0)

    def make(self, topic: str, index: int, topic_id: UUID = TOPIC_ID) -> Partition:
        name = TopicPartition(topic, index)
        log = self.store.create(name, topic_id)
        context = partition_context(
            self.disk, self.clock, flush=self.flushed.append, has_lease=lambda: self.has_lease
        )
        partition = Partition(name, topic_id, log, context)
        partition.apply_metadata(view(ME, 3, 0))
        return partition

    def append(self, *values: bytes, zstd: bool = True, **fields: Any) -> int:
        return self.partition.append(self.batch(*values, **fields), zstd=zstd).first_offset

    def refusal(self, records: Any, *, zstd: bool = True) -> str:
        end = self.partition.log.end_offset
        with pytest.raises(Refused) as refused:
            self.partition.append(records, zstd=zstd)
        assert self.partition.log.end_offset == end
        return refused.value.code.name

    def configure(self, **texts: str) -> None:
        overrides = {name.replace("_", "."): text for name, text in texts.items()}
        self.partition.configure(LAYERS.topic_settings(overrides))

    def read(
        self, offset: int, bytes_max: int, *, at_least_one_batch: bool = True, **options: int
    ) -> list[list[int]]:
        """The base offsets of the batches read, one list for each range."""
        result = []
        for part in self.partition.read(offset, bytes_max, at_least_one_batch=at_least_one_batch, **options).ranges:
            data = part.file.read_at(part.position, part.length)
            assert len(data) == part.length
            result.append([header.base_offset for _, header in walk(data)])
            part.file.release()
        return result


@pytest.fixture
def host(make_batch: Callable[..., memoryview]) -> PartitionHost:
    return PartitionHost(make_batch)


@pytest.fixture
def small(make_batch: Callable[..., memoryview]) -> PartitionHost:
    """Two batches to a segment."""
    size = len(make_batch(b"v"))
    return PartitionHost(make_batch, LogLimits(segment_bytes=2 * size))


# Appending.


def test_batches_get_offsets_and_the_leaders_epoch(host: PartitionHost) -> None:
    assert [host.append(b"a", b"b"), host.append(b"c")] == [0, 2]
    data = host.partition.log.read_batches(0, 1000)
    assert [(header.base_offset, header.leader_epoch) for _, header in walk(data)] == [(0, 3), (2, 3)]
    assert host.partition.committed_offset == host.partition.last_stable_offset == 3


@pytest.mark.parametrize("nothing", [None, memoryview(b"")])
def test_no_records_are_refused(host: PartitionHost, nothing: Any) -> None:
    assert host.refusal(nothing) == "INVALID_RECORD"


def test_zstd_is_for_those_who_know_of_it(host: PartitionHost) -> None:
    records = host.batch(b"a" * 100, codec=4)
    assert host.refusal(records, zstd=False) == "UNSUPPORTED_COMPRESSION_TYPE"
    assert host.append(b"a" * 100, codec=3, zstd=False) == 0
    assert host.append(b"a" * 100, codec=4, zstd=True) == 1


@pytest.mark.parametrize("length", [1, 30, 60])
def test_less_than_a_batch_is_for_the_log_to_refuse(host: PartitionHost, length: int) -> None:
    assert host.refusal(host.batch(b"a")[:length]) == "CORRUPT_MESSAGE"


def test_a_refused_append_wakes_no_watcher(host: PartitionHost) -> None:
    watching = Watching(host.partition)
    records = host.batch(b"a")
    records[-1] ^= 1
    assert host.refusal(records) == "CORRUPT_MESSAGE"
    assert watching.woken == 0


def test_only_the_broker_itself_writes_to_its_own_topics(host: PartitionHost) -> None:
    host.partition = host.make("__consumer_offsets", 0)
    watching = Watching(host.partition)
    assert host.refusal(host.batch(b"a")) == "INVALID_TOPIC_EXCEPTION"
    assert watching.woken == 0
    assert host.partition.append_own(bytes(host.batch(b"a"))).first_offset == 0
    assert watching.woken == 1


# Watching.


def test_every_append_wakes_those_who_watch_in_the_order_in_which_they_came(host: PartitionHost) -> None:
    watching = [Watching(host.partition), Watching(host.partition, leaves=True), Watching(host.partition)]
    host.append(b"a")
    host.append(b"b")
    assert [each.woken for each in watching] == [2, 1, 2]
    assert list(host.partition.watchers) == [watching[0], watching[2]]


def test_a_duplicate_wakes_no_watcher_and_returns_its_first_offset(host: PartitionHost) -> None:
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert host.append(b"a", **fields) == 0
    watching = Watching(host.partition)
    appended = host.partition.append(host.batch(b"a", **fields), zstd=True)
    assert (appended.first_offset, appended.duplicate, watching.woken) == (0, True, 0)


def numbered(host: PartitionHost, sequence: int, epoch: int = 0) -> memoryview:
    return host.batch(b"v", producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_what_follows_a_batch_that_was_refused_for_now_hears_the_same(host: PartitionHost) -> None:
    """On OUT_OF_ORDER_SEQUENCE_NUMBER the producer would bump its epoch and resend batches that may be written."""
    host.partition.append(numbered(host, 0), zstd=True)
    host.disk.fill()
    assert host.refusal(numbered(host, 1)) == "KAFKA_STORAGE_ERROR"
    host.disk.make_room()
    assert host.refusal(numbered(host, 2)) == "KAFKA_STORAGE_ERROR"
    assert host.refusal(numbered(host, 3)) == "KAFKA_STORAGE_ERROR"
    for sequence in (1, 2, 3):
        host.partition.append(numbered(host, sequence), zstd=True)
    assert host.refusal(numbered(host, 5)) == "OUT_OF_ORDER_SEQUENCE_NUMBER", "nothing was refused before that one"


def test_a_producer_that_retries_through_a_long_outage_is_never_told_that_it_is_out_of_order(
    host: PartitionHost,
) -> None:
    """Its first rejection is more than ten seconds old when the disk has space again, its last one is not."""
    host.partition.append(numbered(host, 0), zstd=True)
    host.disk.fill()
    for _ in range(50):
        assert host.refusal(numbered(host, 1)) == "KAFKA_STORAGE_ERROR"
        host.clock.run_for(200)
    host.disk.make_room()
    assert host.refusal(numbered(host, 2)) == "KAFKA_STORAGE_ERROR"
    for sequence in (1, 2):
        host.partition.append(numbered(host, sequence), zstd=True)


def test_a_producer_that_does_not_come_back_with_it_hears_that_something_is_missing(host: PartitionHost) -> None:
    host.partition.append(numbered(host, 0), zstd=True)
    host.disk.fill()
    host.refusal(numbered(host, 1))
    host.disk.make_room()
    assert host.refusal(numbered(host, 2)) == "KAFKA_STORAGE_ERROR"
    assert host.refusal(numbered(host, 2, epoch=1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER", "another epoch, another order"
    host.clock.run_for(10_000)
    assert host.refusal(numbered(host, 2)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_batch_from_before_those_that_are_remembered_is_told_to_be_written_once_it_survives(
    host: PartitionHost,
) -> None:
    for sequence in range(8):
        host.partition.append(numbered(host, sequence), zstd=True)
    assert host.refusal(numbered(host, 1)) == "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    host.partition.acknowledges_after_sync = False
    assert host.refusal(numbered(host, 1)) == "DUPLICATE_SEQUENCE_NUMBER"


def test_a_producer_that_goes_on_at_the_next_leader_begins_with_what_has_no_answer_yet(host: PartitionHost) -> None:
    """Its first batches went to the previous leader, which is stalled: they could not be appended after a later
    one.
    """
    host.partition.apply_metadata(view(2, 4, 1, "12", "12"))
    host.partition.apply_metadata(view(ME, 5, 2, "12", "1"))
    assert host.refusal(numbered(host, 2)) == "NOT_ENOUGH_REPLICAS"
    for sequence in range(4):
        host.partition.append(numbered(host, sequence), zstd=True)
    assert host.refusal(numbered(host, 5)) == "OUT_OF_ORDER_SEQUENCE_NUMBER", "this one has a past here"


def test_waiting_for_a_misdirected_first_batch_is_bounded(host: PartitionHost) -> None:
    host.partition.apply_metadata(view(2, 4, 1, "12", "12"))
    host.partition.apply_metadata(view(ME, 5, 2, "12", "1"))
    assert host.refusal(numbered(host, 2)) == "NOT_ENOUGH_REPLICAS"
    host.clock.run_for(60_000)
    assert host.refusal(numbered(host, 2)) == "NOT_ENOUGH_REPLICAS", "it is looked at only then"
    host.partition.append(numbered(host, 2), zstd=True)


def test_the_first_leader_of_all_takes_any_sequence(make_batch: Callable[..., memoryview]) -> None:
    """For example of a topic that was recreated: its producers continue their sequences."""
    host = PartitionHost(make_batch)
    partition = host.make("anew", 0, UUID(int=8))
    partition.apply_metadata(view(ME, 0, 0, "12", "12"))
    host.partition = partition
    host.partition.append(numbered(host, 2), zstd=True)


# Flushing by count.


def test_so_many_unsynced_messages_are_flushed(host: PartitionHost) -> None:
    host.configure(flush_messages="3")
    host.append(b"a", b"b")
    assert host.flushed == []
    host.append(b"c")
    assert host.flushed == [host.partition.log]
    ticket = host.partition.log.sync_target()
    ticket.run()
    host.partition.log.synced(ticket)
    host.append(b"d", b"e")
    assert len(host.flushed) == 1


def test_without_the_setting_nothing_is_flushed_by_count(host: PartitionHost) -> None:
    host.configure()
    for _ in range(10):
        host.append(b"a")
    assert host.flushed == []


@pytest.mark.parametrize(("text", "waits"), [("auto", True), ("always", True), ("never", False)])
def test_flush_ack_says_whether_an_acknowledgement_waits(host: PartitionHost, text: str, waits: bool) -> None:
    host.configure(flush_ack=text)
    assert host.partition.acknowledges_after_sync is waits


# Reading.


def test_a_read_goes_on_over_segments(small: PartitionHost) -> None:
    for number in range(5):
        small.append(b"%d" % number)
    assert small.partition.log.segments.bases == [0, 2, 4]
    assert small.read(0, 10_000) == [[0, 1], [2, 3], [4]]
    assert small.read(3, 10_000) == [[3], [4]]
    assert small.read(5, 10_000) == []


def test_a_read_ends_where_the_bytes_do(small: PartitionHost) -> None:
    for number in range(5):
        small.append(b"%d" % number)
    size = len(small.batch(b"v"))
    assert small.read(0, 2 * size) == [[0, 1]]
    assert small.read(0, 3 * size) == [[0, 1], [2]]
    assert small.read(0, 3 * size - 1) == [[0, 1]], "less than a batch of the next segment is not worth a range"
    # The last batch may be cut, within a segment.
    assert small.read(0, size + 1) == [[0]]


def test_the_first_batch_comes_whole_if_it_must(host: PartitionHost) -> None:
    host.append(b"a" * 1000)
    assert host.read(0, 10) == [[0]]
    assert host.read(0, 10, at_least_one_batch=False) == []
    assert host.read(0, -1) == [[0]]


def test_only_the_first_batch_of_all_comes_whole(make_batch: Callable[..., memoryview]) -> None:
    host = PartitionHost(make_batch, LogLimits(segment_bytes=1000))
    host.append(b"a" * 500)
    host.append(b"b" * 500)
    assert host.partition.log.segments.bases == [0, 1]
    assert host.read(0, 700) == [[0]]
    assert host.read(0, 100) == [[0]]
    assert host.read(0, 2000) == [[0], [1]]


def test_a_read_may_end_before_the_log_does(small: PartitionHost) -> None:
    for number in range(5):
        small.append(b"%d" % number)
    for upper, expected in ((1, [[0]]), (2, [[0, 1]]), (3, [[0, 1], [2]]), (4, [[0, 1], [2, 3]])):
        assert small.read(0, 10_000, upper_offset=upper) == expected
    assert small.read(4, 10_000, upper_offset=4) == []


def test_there_is_an_end_to_the_segments_of_one_read(make_batch: Callable[..., memoryview]) -> None:
    host = PartitionHost(make_batch, LogLimits(segment_bytes=len(make_batch(b"v"))))
    for _ in range(RANGES_MAX + 5):
        host.append(b"v")
    assert host.read(0, 1 << 20) == [[offset] for offset in range(RANGES_MAX)]


def test_every_range_holds_its_file_until_it_is_released(small: PartitionHost) -> None:
    for number in range(4):
        small.append(b"%d" % number)
    ranges = small.partition.read(0, 10_000, at_least_one_batch=True).ranges
    small.partition.log.abandon()
    for part in ranges:
        assert part.file.read_at(part.position, part.length)
        part.file.release()
    with pytest.raises(OSError, match=r"(?i)bad file"):
        ranges[0].file.read_at(0, 1)


def test_offsets_outside_the_log_are_refused(host: PartitionHost) -> None:
    host.append(b"a")
    for offset in (-1, 2):
        with pytest.raises(Refused) as refused:
            host.read(offset, 1000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_that_an_offset_is_beyond_the_end_is_said_by_one_who_leads_for_certain(host: PartitionHost) -> None:
    host.append(b"a")
    host.partition.apply_metadata(view(ME, 4, 1, "12", "12"))
    host.has_lease = False
    for offset, code in ((2, ErrorCode.NOT_LEADER_OR_FOLLOWER), (-1, ErrorCode.OFFSET_OUT_OF_RANGE)):
        with pytest.raises(Refused) as refused:
            host.read(offset, 1000)
        assert refused.value.code is code
    host.has_lease = True
    with pytest.raises(Refused) as refused:
        host.read(2, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# Epochs.


def test_a_reader_must_know_the_leaders_epoch_or_not_ask(host: PartitionHost) -> None:
    host.partition.check_leader_epoch(-1)
    host.partition.check_leader_epoch(3)
    for epoch, code in ((2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(Refused) as refused:
            host.partition.check_leader_epoch(epoch)
        assert refused.value.code is code


def test_the_ends_of_epochs(host: PartitionHost) -> None:
    assert host.partition.end_of_epoch(3) == (3, 0), "the leader's own epoch, though nothing was written in it"
    host.append(b"a", b"b")
    host.partition.apply_metadata(view(ME, 5, 1))
    # A reader that knows epoch 4 but has no records from it must not be sent back to the first record.
    assert host.partition.end_of_epoch(4) == (3, 2)
    host.append(b"c")
    assert host.partition.end_of_epoch(5) == (5, 3)
    assert host.partition.end_of_epoch(4) == (3, 2)
    assert host.partition.end_of_epoch(2) == (2, 0), "before all that is known"
    assert host.partition.end_of_epoch(6) == (-1, -1)


def test_that_an_epoch_is_unknown_is_said_by_one_who_leads_for_certain(host: PartitionHost) -> None:
    host.append(b"a")
    host.partition.apply_metadata(view(ME, 4, 1, "12", "12"))
    partitions = Partitions()
    partitions.add(host.partition)
    kind = m.OffsetForLeaderEpochRequest
    wanted = [kind.OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in (3, 5)]
    request = kind(topics=[kind.OffsetForLeaderTopic(topic="pond", partitions=wanted)])

    def answered() -> list[tuple[int, int]]:
        broker: Any = SimpleNamespace(partitions=partitions)
        reply: Any = k23_offset_for_leader_epoch.handle(broker, Call(None, 4, None), request)
        return [(each.error_code, each.end_offset) for each in reply.topics[0].partitions]

    assert answered() == [(ErrorCode.NONE, 1), (ErrorCode.NONE, -1)]
    host.has_lease = False
    assert answered() == [(ErrorCode.NONE, 1), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


# The table.


def test_partitions_are_found_by_name_and_by_id_however_they_are_written(host: PartitionHost) -> None:
    other_id = UUID(int=8)
    partitions = Partitions()
    made = [host.partition, host.make("pond", 1), host.make("weir", 0, other_id)]
    for each in made:
        partitions.add(each)
    assert len(partitions) == 3
    assert list(partitions) == made
    assert partitions.get("pond", 1) is made[1]
    assert partitions.by_id(other_id, 0) is made[2]
    assert partitions.by_raw(b"weir\0\0\0\0", is_id=False) is made[2]
    assert partitions.by_raw(TOPIC_ID.bytes + b"\0\0\0\1", is_id=True) is made[1]
    assert partitions.of_topic(TOPIC_ID) == made[:2]
    for missing in (
        partitions.get("pond", 2),
        partitions.get("lake", 0),
        partitions.by_id(other_id, 1),
        partitions.by_id(UUID(int=9), 0),
        partitions.by_raw(b"weir\0\0\0\0", is_id=True),
        partitions.by_raw(TOPIC_ID.bytes + bytes(4), is_id=False),
    ):
        assert missing is None


def test_a_discarded_partition_is_gone_everywhere_and_its_watchers_hear_of_it(host: PartitionHost) -> None:
    partitions = Partitions()
    gone, kept = host.partition, host.make("pond", 1)
    partitions.add(gone)
    partitions.add(kept)
    watching = Watching(gone)
    partitions.remove(gone)
    assert (watching.woken, watching.dismissed) == (0, 1)
    assert partitions.get("pond", 0) is partitions.by_id(TOPIC_ID, 0) is None
    assert partitions.by_raw(b"pond\0\0\0\0", is_id=False) is None
    assert partitions.by_raw(TOPIC_ID.bytes + bytes(4), is_id=True) is None
    assert partitions.of_topic(TOPIC_ID) == list(partitions) == [kept]
    partitions.remove(kept)
    assert (partitions.of_topic(TOPIC_ID), len(partitions)) == ([], 0)


def test_the_table_may_change_during_iteration(host: PartitionHost) -> None:
    partitions = Partitions()
    partitions.add(host.partition)
    partitions.add(host.make("pond", 1))
    for each in partitions:
        partitions.remove(each)
    assert len(partitions) == 0


# Permissions.


def test_a_permission_dies_with_the_leadership_that_asked_for_it(host: PartitionHost) -> None:
    """KAFKA-14884: the transaction may have ended under another leader; if written now, the batch would hang."""
    partition = host.partition
    permission = permitted(partition.log.producers, 7, 0, 0, 0)
    partition.apply_metadata(view(2, 4, 1, "12", "12"))
    partition.apply_metadata(view(ME, 5, 2, "12", "1"))
    records = host.batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(Refused) as refused:
        partition.append(records, zstd=True, verification=permission)
    assert refused.value.code.name == "NOT_LEADER_OR_FOLLOWER", "so that the producer tries again"
    asked_anew = permitted(partition.log.producers, 7, 0, 0, 0)
    assert asked_anew is not permission
    assert partition.append(records, zstd=True, verification=asked_anew).first_offset == 0
