from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record import MemoryRecordsBuilder
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode, Refused
from millpond.log.limits import LogLimits
from millpond.sim.world.disk import SimDisk
from millpond.wire.batch import check_batch, read_header
from support.seeds import dice, seeds


def refusal(action, *arguments, **named):
    with pytest.raises(Refused) as refused:
        action(*arguments, **named)
    return refused.value.code


def test_a_batch_gets_the_next_offsets_and_the_leaders_epoch(harness):
    _, log = harness.open()
    first = log.append(harness.batch(b"a", b"b", b"c"), leader_epoch=4, now_ms=harness.now_ms)
    assert first == (0, 2, -1, 0, False)
    second = log.append(harness.batch(b"d"), leader_epoch=5, now_ms=harness.now_ms)
    assert (second.first_offset, second.last_offset) == (3, 3)
    header = check_batch(log.read_batches(3, 1000))
    assert (header.base_offset, header.leader_epoch) == (3, 5)
    assert log.last_epoch == 5
    assert log.end_offset_for_epoch(4) == (4, 3)


def test_several_batches_of_the_broker_itself_are_written_as_one(harness, sim):
    _, log = harness.open()
    data = memoryview(bytearray(bytes(harness.batch(b"a", b"b")) + bytes(harness.batch(b"c"))))
    before = sim.operations
    assert refusal(log.append, data, leader_epoch=0, now_ms=harness.now_ms) == ErrorCode.INVALID_RECORD
    assert log.append(data, leader_epoch=0, now_ms=harness.now_ms, from_client=False)[:2] == (0, 2)
    assert sim.operations == before + 1
    assert harness.values(log) == {0: b"a", 1: b"b", 2: b"c"}


def test_a_refusal_changes_nothing(harness, sim):
    _, log = harness.open()
    harness.fill(log, 3)
    files, epochs = sim.contents(), list(log.epochs.entries)
    damaged = harness.batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0)
    damaged[-1] ^= 1
    assert refusal(log.append, damaged, leader_epoch=9, now_ms=harness.now_ms) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(harness.append, log, b"x", timestamp=harness.now_ms + 10**8) == ErrorCode.INVALID_TIMESTAMP
    assert (sim.contents(), log.end_offset, log.epochs.entries, log.producers.entries) == (files, 3, epochs, {})


def test_append_time_is_stamped_into_every_batch(harness):
    _, log = harness.open()
    log.limits = replace(log.limits, timestamp_type_append=True)
    done = log.append(harness.batch(b"a", timestamp=5), leader_epoch=0, now_ms=777)
    assert done.append_time_ms == 777
    assert check_batch(log.read_batches(0, 1000)).is_append_time
    assert [record.timestamp for record in harness.records(log)] == [777]
    assert log.find_by_timestamp(777) == (777, 0, 0)


def test_it_rolls_by_size_by_age_and_by_index(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=300, index_interval_bytes=0))
    _, log = harness.open()
    harness.fill(log, 10)
    assert len(log.segments) > 2
    assert all(segment.size <= 300 for segment in log.segments)
    harness = make_pond(limits=LogLimits(segment_ms=1000))
    _, log = harness.open()
    harness.fill(log, 1)
    harness.now_ms += 999
    harness.fill(log, 1)
    assert len(log.segments) == 1
    harness.now_ms += 1
    harness.fill(log, 1)
    assert log.segments.bases == [0, 2]
    harness = make_pond(limits=LogLimits(index_interval_bytes=0, index_bytes_max=24))
    _, log = harness.open()
    harness.fill(log, 8)
    assert log.segments.bases == [0, 4]


def test_a_batch_sent_twice_is_stored_once(harness):
    _, log = harness.open()
    for sequence in range(7):
        harness.append(log, b"%d" % sequence, producer_id=1, producer_epoch=0, base_sequence=sequence)
    for sequence in (2, 6):
        again = harness.batch(b"%d" % sequence, producer_id=1, producer_epoch=0, base_sequence=sequence)
        done = log.append(again, leader_epoch=0, now_ms=harness.now_ms)
        assert (done.first_offset, done.duplicate) == (sequence, True)
    forgotten = harness.batch(b"1", producer_id=1, producer_epoch=0, base_sequence=1)
    code = refusal(log.append, forgotten, leader_epoch=0, now_ms=harness.now_ms)
    assert code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert log.end_offset == 7


def test_a_full_disk_refuses_and_leaves_no_torn_tail(harness, sim):
    _, log = harness.open()
    harness.fill(log, 2)
    sim.capacity_bytes = sim.used_bytes() + 30
    assert refusal(harness.append, log, b"too much") == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed is None
    sim.capacity_bytes = 1 << 40
    assert harness.append(log, b"fits again") == 2
    assert harness.values(log) == {0: b"value-0", 1: b"value-1", 2: b"fits again"}


def test_a_disk_that_is_full_when_a_segment_is_rolled_refuses_too(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=300))
    _, log = harness.open()
    harness.fill(log, 3)
    harness.disk.open_files_max = harness.disk.open_files
    assert refusal(harness.fill, log, 5, start=3) == ErrorCode.KAFKA_STORAGE_ERROR
    harness.disk.open_files_max = None
    end = log.end_offset
    harness.fill(log, 5, start=end)
    assert list(harness.values(log).values()) == [b"value-%d" % number for number in range(end + 5)]


def test_a_failed_sync_closes_the_log_for_good(harness, sim):
    store, log = harness.open()
    harness.fill(log, 2)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 1, start=2)
    sim.fail_syncs(".log", times=1)
    ticket = log.sync_target()
    with pytest.raises(OSError) as failure:
        ticket.run()
    assert failure.value.errno == errno.EIO
    log.fail(failure.value, ticket)
    assert refusal(harness.append, log, b"x") == ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(log.read, 0, 100) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.synced_offset == 2
    store.close()
    sim.crash()
    _, log = harness.open()
    assert harness.values(log) == {0: b"value-0", 1: b"value-1"}


def test_what_is_dirty_and_what_is_safe(harness):
    _, log = harness.open()
    assert log.dirty, "its own name is not safe yet"
    harness.sync(log)
    assert not log.dirty
    harness.fill(log, 30)
    assert (log.dirty, log.synced_offset) == (True, 0)
    ticket = log.sync_target()
    harness.fill(log, 1, start=30)
    ticket.run()
    log.synced(ticket)
    assert (log.dirty, log.synced_offset) == (True, 30)
    harness.sync(log)
    assert (log.dirty, log.synced_offset, log.files.pinned_count) == (False, 31, 0)


def test_other_peoples_batches_are_taken_byte_for_byte(harness):
    _, log = harness.open()
    ours = []
    for kind in (0, 1, 2, 3):
        builder = MemoryRecordsBuilder(magic=2, compression_type=kind, batch_size=1 << 16)
        for number in range(5):
            builder.append(timestamp=harness.now_ms + number, key=b"key", value=b"value-%d" % number)
        builder.close()
        ours.append(bytes(builder.buffer()))
        theirs = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=kind,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 16,
        )
        for number in range(5):
            theirs.append(
                number, timestamp=harness.now_ms + number, key=b"key", value=b"value-%d" % number, headers=[]
            )
        ours.append(bytes(theirs.build()))
    for data in ours:
        done = log.append(memoryview(bytearray(data)), leader_epoch=0, now_ms=harness.now_ms)
        stored = log.read_batches(done.first_offset, 1)
        assert stored[16:] == data[16:]
        assert [r.value for r in harness.records(log, done.first_offset)] == [b"value-%d" % n for n in range(5)]
        assert log.find_by_timestamp(harness.now_ms + 4) == (harness.now_ms + 4, 4, 0)


def test_a_leaders_batches_keep_their_offsets(harness):
    _, leader = harness.open()
    for epoch in (0, 0, 3):
        harness.append(leader, b"a", b"b", epoch=epoch)
    data = leader.read_batches(0, 10_000)
    other = type(harness)()
    _, follower = other.open()
    assert follower.append_follower(memoryview(bytearray(data)), now_ms=1)[:2] == (0, 5)
    assert follower.read_batches(0, 10_000) == data
    assert follower.epochs.entries == leader.epochs.entries
    again = memoryview(bytearray(data))
    assert refusal(follower.append_follower, again, now_ms=1) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_topic_id_survives(harness, sim):
    store, log = harness.open()
    harness.sync(log)
    store.abandon()
    sim.crash()
    assert harness.open()[1].topic_id == harness.topic_id


def test_random_lives_read_like_a_list(make_pond):
    random = dice(5)
    for seed in seeds(range(15)):
        harness = make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=700, index_interval_bytes=200))
        store, log = harness.open()
        model: list[bytes] = []
        for _ in range(60):
            match random.randrange(8):
                case 0:
                    store.close()
                    store, log = harness.open()
                case 1:
                    store.abandon()
                    store, log = harness.open()
                case 2 if model:
                    cut = random.randrange(len(model) + 1)
                    harness.cut(log, cut)
                    del model[log.end_offset :]
                    assert log.end_offset <= cut < log.end_offset + 5
                case _:
                    values = [random.randbytes(random.randrange(60)) for _ in range(random.randrange(1, 5))]
                    harness.append(log, *values)
                    model += values
            assert log.end_offset == len(model)
        assert list(harness.values(log).values()) == model
        for offset in range(len(model)):
            assert read_header(log.read_batches(offset, 1)).base_offset <= offset


# Transactions


def transactional(harness, log, producer, sequence, value=b"v", epoch=0):
    batch = harness.batch(
        value, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    verification = permitted(log.producers, producer, epoch, sequence, harness.now_ms)
    return log.append(batch, leader_epoch=0, now_ms=harness.now_ms, verification=verification).first_offset


def mark(harness, log, producer, committed, epoch=0, coordinator_epoch=0, version=0):
    return log.append_marker(
        producer,
        epoch,
        committed,
        coordinator_epoch,
        now_ms=harness.now_ms,
        leader_epoch=5,
        transaction_version=version,
    )


def test_a_marker_takes_an_offset_and_makes_stable_what_came_before(harness):
    _, log = harness.open()
    harness.append(log, b"plain")
    transactional(harness, log, 7, 0)
    harness.append(log, b"plain")
    assert (log.last_stable_offset, log.stable_offset(3), log.stable_offset(1)) == (1, 1, 1)
    appended = mark(harness, log, 7, committed=True)
    assert (appended.first_offset, appended.last_offset, appended.duplicate) == (3, 3, False)
    assert log.last_stable_offset == log.end_offset == 4
    assert log.stable_offset(3) == 1, "the marker is not on the followers yet"
    assert log.last_epoch == 5
    (record,) = harness.records(log, 3)
    assert (record.key, record.value) == (b"\0\0\0\1", b"\0\0\0\0\0\0")


def test_aborted_transactions_are_listed_wherever_they_ended(harness):
    _, log = harness.open()
    transactional(harness, log, 7, 0)
    transactional(harness, log, 8, 0)
    harness.fill(log, 20)
    first_end = mark(harness, log, 8, committed=False).first_offset
    harness.fill(log, 20)
    transactional(harness, log, 8, 1)
    last_end = mark(harness, log, 7, committed=False).first_offset
    mark(harness, log, 8, committed=True)
    end = log.end_offset
    assert len(log.segments) > 3
    assert log.aborted_transactions(0, end) == [(8, 1), (7, 0)]
    assert log.aborted_transactions(first_end + 1, end) == [(7, 0)]
    assert log.aborted_transactions(first_end, first_end + 1) == [(8, 1), (7, 0)]
    assert log.aborted_transactions(0, 1) == [(7, 0)]
    assert log.aborted_transactions(last_end + 1, end) == []


def test_zombies_cannot_end_a_transaction(harness):
    _, log = harness.open()
    transactional(harness, log, 7, 0, epoch=3)
    with pytest.raises(Refused) as older:
        mark(harness, log, 7, committed=True, epoch=2)
    assert older.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(Refused) as same:
        mark(harness, log, 7, committed=True, epoch=3, version=2)
    assert same.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    mark(harness, log, 7, committed=True, epoch=4, coordinator_epoch=9, version=2)
    mark(harness, log, 7, committed=True, epoch=4, coordinator_epoch=9, version=2)
    with pytest.raises(Refused) as fenced:
        mark(harness, log, 7, committed=True, epoch=4, coordinator_epoch=8)
    assert fenced.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.end_offset == 3
    with pytest.raises(Refused) as zombie:
        transactional(harness, log, 7, 1, epoch=3)
    assert zombie.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unverified_beginning_is_refused_and_changes_nothing(harness):
    _, log = harness.open()
    batch = harness.batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(Refused) as unverified:
        log.append(batch, leader_epoch=0, now_ms=harness.now_ms)
    assert unverified.value.code == ErrorCode.INVALID_TXN_STATE
    assert (log.end_offset, log.producer_states()) == (0, [])
    transactional(harness, log, 7, 0)
    batch = harness.batch(b"w", producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
    with pytest.raises(Refused) as unverified:
        log.append(batch, leader_epoch=0, now_ms=harness.now_ms)
    assert unverified.value.code == ErrorCode.INVALID_TXN_STATE
    with pytest.raises(Refused) as plain:
        harness.append(log, b"x", producer_id=7, producer_epoch=0, base_sequence=1)
    assert plain.value.code == ErrorCode.INVALID_TXN_STATE


def test_a_follower_knows_of_transactions_what_its_leader_knows(harness, make_pond):
    _, leader = harness.open()
    transactional(harness, leader, 7, 0)
    transactional(harness, leader, 8, 0)
    mark(harness, leader, 7, committed=False, epoch=1, version=2)
    _, follower = make_pond().open()
    follower.append_follower(memoryview(bytearray(leader.read_batches(0, 1 << 20))), now_ms=harness.now_ms)
    assert follower.producer_states() == leader.producer_states()
    assert follower.aborted_transactions(0, 9) == leader.aborted_transactions(0, 9) == [(7, 0)]
    assert follower.last_stable_offset == leader.last_stable_offset == 1


def test_what_is_stable_never_lies_before_the_start(harness):
    _, log = harness.open()
    transactional(harness, log, 7, 0)
    harness.fill(log, 5)
    harness.delete_before(log, 3)
    assert log.last_stable_offset == 3


def test_a_marker_on_a_closed_log_is_refused(harness):
    store, log = harness.open()
    store.close()
    with pytest.raises(Refused) as closed:
        mark(harness, log, 7, committed=True)
    assert closed.value.code == ErrorCode.KAFKA_STORAGE_ERROR
