"""What a log owes the disk is synced in order; many logs are synced in one call of the system."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from millpond.base.errors import Refused
from millpond.base.ids import Offset, TopicPartition
from millpond.log.checkpoints import decode_epochs, decode_metadata
from millpond.log.durability import TOGETHER_FROM, Durability, run_tickets
from millpond.log.limits import LogLimits
from millpond.log.names import FAILED_SYNC_FILE
from millpond.log.open_files import OpenFiles
from millpond.log.partition_log import PartitionLog
from millpond.log.segment import Segment
from millpond.log.store import LogStore
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.wire.records import Record, encode_batch
from support.seeds import seeds


def test_files_are_synced_before_their_names_and_only_what_is_owed(harness, sim):
    _, log = harness.open()
    harness.fill(log, 1)
    mark = len(sim.trace)
    harness.sync(log)
    kinds = [line.split()[1:3] for line in list(sim.trace)[mark:]]
    synced = [kind for kind in kinds if kind[0].startswith("sync")]
    assert synced[:4] == [
        ["sync", f"{harness.partition}/{0:020d}.log"],
        ["sync", f"{harness.partition}/partition.metadata"],
        ["sync_folder", "/data"],
        ["sync_folder", "/data/pond-0"],
    ]
    harness.fill(log, 1)
    mark = len(sim.trace)
    harness.sync(log)
    assert [line.split()[1] for line in list(sim.trace)[mark:]] == ["sync"], "the usual case is one sync"


def test_a_rolled_segment_is_synced_with_its_indexes(harness, sim):
    _, log = harness.open()
    harness.sync(log)
    harness.fill(log, 20)
    mark = len(sim.trace)
    harness.sync(log)
    paths = [line.split()[2] for line in list(sim.trace)[mark:] if line.split()[1] == "sync"]
    for suffix in (".log", ".index", ".timeindex"):
        assert f"{harness.partition}/{0:020d}{suffix}" in paths


def test_the_indexes_of_a_segment_that_is_rolled_during_a_sync_are_synced_by_the_next(harness, sim):
    """The ticket covers all of its records, and none of its indexes: they are written when it is rolled."""
    _, log = harness.open()
    harness.sync(log)
    harness.fill(log, 3)
    ticket = log.sync_target()
    ticket.run()
    log.roll()
    log.synced(ticket)
    assert log.dirty
    mark = len(sim.trace)
    harness.sync(log)
    paths = [line.split()[2] for line in list(sim.trace)[mark:] if line.split()[1] == "sync"]
    for suffix in (".index", ".timeindex"):
        assert f"{harness.partition}/{0:020d}{suffix}" in paths
    assert not log.dirty


def test_a_segment_written_during_a_sync_is_still_owed_after_it():
    disk = SimDisk()
    disk.make_folder("/p")
    sealed, active = (Segment.create(OpenFiles(disk), "/p", base) for base in (0, 5))
    durability = Durability(disk, "/p", 0)
    durability.owe_segment(sealed)
    first = durability.ticket(Offset(5), active)
    first.run()
    durability.owe_segment(sealed)
    durability.settle(first)
    assert durability, "its indexes may have been written again since"
    second = durability.ticket(Offset(5), active)
    second.run()
    durability.settle(second)
    assert not durability


def test_what_is_owed_is_handed_over_and_paid():
    disk = SimDisk()
    disk.make_folder("/p")
    sealed, active = (Segment.create(OpenFiles(disk), "/p", base) for base in (0, 5))
    durability = Durability(disk, "/p", 0)
    durability.owe_segment(sealed)
    durability.owe_note("note", lambda: b"text")
    ticket = durability.ticket(Offset(5), active)
    assert (ticket.folders, ticket.replacements) == ({"/p"}, [("/p/note", b"text")])
    ticket.run()
    assert disk.read("/p/note") == b"text"
    # Written to since: it is still owed.
    durability.owe_segment(sealed)
    durability.settle(ticket)
    assert durability
    assert durability.synced_offset == 5
    durability.forget(sealed)
    assert not durability


def test_without_descriptors_nothing_is_lost_and_everything_still_owed(harness, sim):
    store, log = harness.open()
    harness.fill(log, 20)
    ticket = log.sync_target()
    sim.open_files_max = sim.open_files
    with pytest.raises(OSError) as full:
        ticket.run()
    assert full.value.errno == errno.EMFILE
    log.fail(full.value, ticket)
    assert log.failed is None
    assert log.dirty
    assert not sim.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")
    sim.open_files_max = None
    harness.sync(log)
    assert not log.dirty
    store.abandon()
    sim.crash()
    assert len(harness.values(harness.open()[1])) == 20


def test_a_last_ticket_that_cannot_be_made_lets_go_of_everything(harness, sim, monkeypatch):
    _, log = harness.open()
    harness.fill(log, 5)
    monkeypatch.setattr(type(log.snapshots), "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert log.begin_close() is None
    assert log.failed is None, "nothing is lost"
    assert not log.durability.away
    log.abandon()
    assert sim.open_files == 0


def test_a_ticket_is_away_until_it_is_back(harness):
    _, log = harness.open()
    tickets = [log.sync_target(), log.sync_target()]
    assert log.durability.away.syncs == 2
    for _ in range(2):
        tickets[0].release()
    assert log.durability.away.syncs == 1, "a second release does no harm"
    log.synced(tickets[1])
    assert not log.durability.away


def dirty_logs(disk: SimDisk, count: int) -> list[PartitionLog]:
    disk.files_limit = 1000
    store = LogStore(disk, "/data", LogLimits(), SeededEntropy(1))
    store.open(0)
    logs = [store.create(TopicPartition("t", number), UUID(int=1)) for number in range(count)]
    for log in logs:
        batch = encode_batch([Record(0, 5, None, b"v")])
        log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=5)
    return logs


def read_back(disk: SimDisk, count: int) -> list[int]:
    store = LogStore(disk, "/data", LogLimits(), SeededEntropy(2))
    report = store.open(0)
    assert not report.failed
    found = [store.get(TopicPartition("t", number)) for number in range(count)]
    return [-1 if log is None else log.end_offset for log in found]


@pytest.mark.parametrize("count", [1, TOGETHER_FROM - 1, TOGETHER_FROM, 40])
@pytest.mark.parametrize("seed", seeds(range(4)))
def test_what_was_synced_survives_a_power_cut(count: int, seed: int) -> None:
    disk = SimDisk(seed)
    tickets = [log.sync_target() for log in dirty_logs(disk, count)]
    assert run_tickets(disk, "/data", tickets) == [None] * count
    disk.crash()
    assert read_back(disk, count) == [1] * count


def test_forty_logs_need_two_calls() -> None:
    disk = SimDisk()
    tickets = [log.sync_target() for log in dirty_logs(disk, 40)]
    calls: list[str] = []
    operation = disk.operation

    def noted(kind: str, *details: object) -> None:
        calls.append(kind)
        operation(kind, *details)

    disk.operation = noted  # type: ignore[method-assign, assignment]
    run_tickets(disk, "/data", tickets)
    assert [kind for kind in calls if "sync" in kind] == ["sync_everything"] * 2


@pytest.mark.parametrize("count", [1, TOGETHER_FROM])
def test_a_note_without_room_is_owed_as_before_and_costs_no_log(count: int) -> None:
    disk = SimDisk(4)
    logs = dirty_logs(disk, count)
    for again in (False, True):
        tickets = [log.sync_target() for log in logs]
        assert all(ticket.replacements for ticket in tickets), "their leader epochs are to be noted"
        if not again:
            disk.fill()
        errors = run_tickets(disk, "/data", tickets)
        for log, ticket, error in zip(logs, tickets, errors, strict=True):
            if again:
                assert error is None
                log.synced(ticket)
            else:
                assert error is not None
                assert error.errno == errno.ENOSPC
                log.fail(error, ticket)
            assert log.failed is None
            assert log.synced_offset == int(again)
        disk.make_room()
    disk.crash()
    assert read_back(disk, count) == [1] * count


@pytest.mark.parametrize("count", [1, TOGETHER_FROM])
def test_a_sync_that_finds_no_room_for_what_was_written_fails_the_log(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems look for room only then: what they had no room for is gone."""
    disk = SimDisk()
    logs = dirty_logs(disk, count)
    tickets = [log.sync_target() for log in logs]
    full = OSError(errno.ENOSPC, "no room")
    for name in ("sync_folder", "sync_everything"):
        monkeypatch.setattr(disk, name, lambda _path: (_ for _ in ()).throw(full))
    assert run_tickets(disk, "/data", tickets) == [full] * count
    for log, ticket in zip(logs, tickets, strict=True):
        log.fail(full, ticket)
        assert log.failed is full


def test_a_failed_sync_fails_every_log_of_the_round() -> None:
    disk = SimDisk()
    tickets = [log.sync_target() for log in dirty_logs(disk, TOGETHER_FROM)]
    disk.fail_syncs()
    errors = run_tickets(disk, "/data", tickets)
    assert len(errors) == TOGETHER_FROM
    assert all(isinstance(error, OSError) for error in errors)


def test_without_such_a_call_each_log_is_synced_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    monkeypatch.setattr(disk, "sync_everything", lambda _path: False)
    tickets = [log.sync_target() for log in dirty_logs(disk, 20)]
    assert run_tickets(disk, "/data", tickets) == [None] * 20
    disk.crash()
    assert read_back(disk, 20) == [1] * 20


def test_a_log_that_was_deleted_meanwhile_fails_alone() -> None:
    disk = SimDisk(3)
    logs = dirty_logs(disk, TOGETHER_FROM)
    tickets = [log.sync_target() for log in logs]
    disk.rename("/data/t-4", "/data/t-4.gone")
    errors = run_tickets(disk, "/data", tickets)
    assert [type(error) for error in errors if error is not None] == [FileNotFoundError]
    assert errors[4] is not None
    disk.crash()
    assert read_back(disk, TOGETHER_FROM) == [1, 1, 1, 1, -1] + [1] * (TOGETHER_FROM - 5)


def test_after_a_failure_each_log_gets_its_own_error() -> None:
    """A sync of everything takes the bytes of logs that were not even in the round."""
    disk = SimDisk()
    logs = dirty_logs(disk, TOGETHER_FROM + 2)
    tickets = [log.sync_target() for log in logs]
    disk.fail_syncs()
    assert None not in run_tickets(disk, "/data", tickets[:TOGETHER_FROM])
    assert None not in run_tickets(disk, "/data", tickets[TOGETHER_FROM:])


@pytest.mark.parametrize("count", [1, TOGETHER_FROM])
def test_whose_partition_it_is_survives_a_power_cut_after_the_first_sync(count: int) -> None:
    disk = SimDisk()
    logs = dirty_logs(disk, count)
    tickets = [log.sync_target() for log in logs]
    # A file that cannot be opened for now is owed as before.
    error = OSError(errno.EMFILE, "too many open files")
    for log, ticket in zip(logs, tickets, strict=True):
        log.fail(error, ticket)
    tickets = [log.sync_target() for log in logs]
    assert run_tickets(disk, "/data", tickets) == [None] * count
    known = [log.topic_id for log in logs]
    folders = [log.folder for log in logs]
    disk.crash()
    assert [decode_metadata(disk.read(f"{folder}/partition.metadata")) for folder in folders] == known


def test_epochs_that_change_again_and_again_survive_a_power_cut_each_time() -> None:
    """What takes the place of a file leaves that one aside, to be written over the next time."""
    disk = SimDisk()
    logs = dirty_logs(disk, TOGETHER_FROM)
    for epoch in (5, 6, 7):
        for log in logs:
            log.begin_epoch(epoch)
        tickets = [log.sync_target() for log in logs]
        assert run_tickets(disk, "/data", tickets) == [None] * TOGETHER_FROM
        for log, ticket in zip(logs, tickets, strict=True):
            log.synced(ticket)
    folders = [log.folder for log in logs]
    disk.crash()
    for folder in folders:
        assert decode_epochs(disk.read(f"{folder}/leader-epoch-checkpoint"))[-1][0] == 7
        assert decode_epochs(disk.read(f"{folder}/leader-epoch-checkpoint.spare"))[-1][0] == 6


def test_what_a_write_without_room_has_left_is_owed_until_the_next_sync(harness, sim):
    _, log = harness.open()
    harness.fill(log, 1)
    harness.sync(log)
    assert not log.dirty
    sim.fill(10)
    with pytest.raises(Refused):
        harness.append(log, b"refused")
    sim.heal()
    assert log.dirty
    harness.fill(log, 1)
    ticket = log.sync_target()
    harness.append(log, b"meanwhile")
    assert len(ticket.files) + len(ticket.closed) == 1
    ticket.run()
    log.synced(ticket)
    ticket = log.sync_target()
    assert not ticket.sealed
    ticket.release()
