"""Group commit: many waiters, few syncs, and no acknowledgement after a failed sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.broker.storage import flusher
from millpond.broker.storage.flusher import ROUNDS_MAX, Flusher
from millpond.log.limits import LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.store import LogStore
from millpond.sim.world.clock import WALL_START_MS
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy


class HandWorkers:
    """Workers that run a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Later[Any]]] = []

    def run(self, job: Callable[[], Any]) -> Later[Any]:
        later: Later[Any] = Later()
        self.jobs.append((job, later))
        return later

    def finish(self, place: int = 0) -> None:
        job, later = self.jobs.pop(place)
        try:
            result = job()
        except Exception as error:
            later.fail(error)
        else:
            later.finish(result)


class Play:
    def __init__(self, make_batch: Callable[..., memoryview]) -> None:
        self.disk = SimDisk()
        self.store = LogStore(self.disk, "/data", LogLimits(), SeededEntropy(1))
        self.store.open(0)
        self.workers = HandWorkers()
        self.flusher = Flusher(self.workers, self.disk, "/data")
        self.heard: list[str] = []
        self._make_batch = make_batch

    def log(self, name: str) -> PartitionLog:
        """A log with nothing left to sync from its creation."""
        log = self.store.create(TopicPartition(name, 0), UUID(int=1))
        ticket = log.sync_target()
        ticket.run()
        log.synced(ticket)
        return log

    def append(self, log: PartitionLog, who: str) -> None:
        """Append one record and wait for it."""
        log.append(self._make_batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
        self.wait(log, who)

    def wait(self, log: PartitionLog, who: str, end_offset: int | None = None) -> None:
        later = self.flusher.after_sync(log, log.end_offset if end_offset is None else end_offset, who)
        later.then(lambda name: self.heard.append(name), lambda _: self.heard.append(f"{who} failed"))

    def force(self, log: PartitionLog, who: str) -> None:
        later = self.flusher.force(log)
        later.then(lambda _: self.heard.append(who), lambda error: self.heard.append(f"{who} {error}"))

    def finish(self, place: int = 0) -> list[str]:
        """Finish one round, and return what was reported since the last call."""
        self.workers.finish(place)
        heard, self.heard = self.heard, []
        return heard

    def syncs(self, name: str) -> int:
        return sum(" sync " in line and f"/{name}-0/" in line and ".log" in line for line in self.disk.trace)


@pytest.fixture
def play(make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_batch)


def test_all_who_wait_share_one_sync(play: Play) -> None:
    log = play.log("a")
    before = play.syncs("a")
    play.append(log, "first")
    for number in range(5):
        play.append(log, str(number))
    assert len(play.workers.jobs) == 1, "a log is in one round at a time"
    assert play.finish() == ["first"]
    assert play.finish() == ["0", "1", "2", "3", "4"]
    assert play.syncs("a") - before == 2
    assert log.synced_offset == 6
    assert play.flusher.is_idle()


def test_nobody_is_told_before_his_own_records_are_safe(play: Play) -> None:
    log = play.log("a")
    play.append(log, "first")
    play.append(log, "second")
    # The first round was assembled before the second record was written, so it does not cover it.
    assert play.finish() == ["first"]
    assert (log.synced_offset, log.end_offset) == (1, 2)
    play.wait(log, "earlier", end_offset=1)
    assert play.heard == ["earlier"]


def test_what_is_safe_already_is_told_at_once(play: Play) -> None:
    log = play.log("a")
    play.append(log, "a")
    play.finish()
    play.wait(log, "again")
    play.wait(log, "earlier", end_offset=0)
    assert play.heard == ["again", "earlier"]
    assert play.workers.jobs == []


def test_one_round_takes_all_logs_that_wait(play: Play) -> None:
    logs = [play.log(name) for name in "abcd"]
    for log in logs[:ROUNDS_MAX]:
        play.append(log, log.folder[-3:])
    assert len(play.workers.jobs) == ROUNDS_MAX
    for log in logs[ROUNDS_MAX:]:
        play.append(log, log.folder[-3:])
    assert len(play.workers.jobs) == ROUNDS_MAX, "no more rounds at once than there may be"
    assert play.finish(0) == ["a-0"]
    assert play.finish(1) == ["c-0", "d-0"], "both in the round that began when the first had ended"
    assert play.finish(0) == ["b-0"]
    assert play.flusher.is_idle()


def test_a_slow_log_does_not_hold_up_another(play: Play) -> None:
    slow, quick = play.log("slow"), play.log("quick")
    play.append(slow, "slow")
    play.append(quick, "quick")
    play.append(slow, "slow again")
    assert play.finish(1) == ["quick"]
    play.append(quick, "quick again")
    assert play.finish(1) == ["quick again"]
    assert play.finish(0) == ["slow"]
    assert play.finish(0) == ["slow again"]


def test_a_failed_sync_fails_all_who_wait_and_closes_the_log(play: Play) -> None:
    bad, good = play.log("bad"), play.log("good")
    for log in (bad, good):
        play.append(log, f"{log.folder} first")
    play.workers.jobs.reverse()
    play.disk.fail_syncs("/bad-0/")
    play.append(bad, "behind")
    play.workers.jobs.reverse()
    assert play.finish(0) == ["behind failed", "/data/bad-0 first failed"]
    assert play.finish(0) == ["/data/good-0 first"]
    assert bad.failed is not None
    # The disk works again, but what it lost cannot be trusted.
    before = play.syncs("bad")
    play.wait(bad, "later")
    assert play.heard == ["later failed"]
    assert play.syncs("bad") == before
    assert play.flusher.is_idle()


def test_one_bad_log_of_a_round_does_not_fail_the_others(play: Play) -> None:
    one, two, bad, good = (play.log(name) for name in ("one", "two", "bad", "good"))
    for log in (one, two, bad, good):
        play.append(log, log.folder[6:])
    play.disk.fail_syncs("/bad-0/")
    assert play.finish(0) == ["one-0"]
    assert play.finish(0) == ["two-0"]
    assert play.finish(0) == ["bad-0 failed", "good-0"]


def test_a_log_that_is_deleted_while_it_waits_for_a_round_is_given_up(play: Play) -> None:
    log = play.log("a")
    play.append(log, "first")
    play.append(log, "second")
    play.store.delete(TopicPartition("a", 0))
    heard = play.finish()
    assert heard[0] == "second failed"
    assert play.flusher.is_idle()
    play.wait(log, "third")
    assert play.heard == ["third failed"]


def test_files_are_kept_open_for_the_round_only(play: Play) -> None:
    log = play.log("a")
    play.append(log, "a")
    log.abandon()
    assert play.disk.open_files > 0
    play.finish()
    assert play.disk.open_files == 0


def test_whoever_is_told_may_wait_again(play: Play) -> None:
    log = play.log("a")
    log.append(play._make_batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
    play.flusher.after_sync(log, 1, None).then(lambda _: play.append(log, "again"))
    assert play.finish() == []
    assert play.finish() == ["again"]


def test_a_fault_of_our_own_is_not_hidden(play: Play) -> None:
    log = play.log("a")
    play.append(log, "a")
    _, later = play.workers.jobs.pop()
    with pytest.raises(ZeroDivisionError):
        later.fail(ZeroDivisionError())


def test_a_fault_of_the_world_outside_of_any_file_fails_the_round(play: Play) -> None:
    log = play.log("a")
    play.append(log, "a")
    _, later = play.workers.jobs.pop()
    later.fail(OSError("the worker could not open anything"))
    assert play.heard == ["a failed"]
    assert log.failed is not None
    assert play.flusher.is_idle()


def test_one_readers_bug_keeps_nobody_else_from_hearing(play: Play) -> None:
    x, y, one, two = (play.log(name) for name in ("x", "y", "one", "two"))
    play.append(x, "x")
    play.append(y, "y")
    for log in (one, two):
        log.append(play._make_batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
        play.flusher.after_sync(log, 1, None).then(lambda _: 1 // 0)  # type: ignore[arg-type]
        play.wait(log, log.folder)
    assert play.finish(0) == ["x"]
    with pytest.raises(ZeroDivisionError):
        play.workers.finish(1)
    assert play.heard == ["/data/one-0", "/data/two-0"]
    play.append(one, "later")
    play.finish(0)
    assert play.finish(0) == ["later"]
    assert play.flusher.is_idle()


def test_names_and_notes_are_forced_though_all_records_are_safe(play: Play) -> None:
    log = play.store.create(TopicPartition("new", 0), UUID(int=1))
    play.wait(log, "records")
    assert play.heard == ["records"], "there are none"
    assert log.dirty
    play.force(log, "everything")
    assert play.finish() == ["records", "everything"]
    assert not log.dirty
    play.force(log, "again")
    assert play.heard == ["again"]
    play.disk.crash()
    assert play.disk.exists("/data/new-0/partition.metadata")


def test_forcing_waits_for_what_another_round_has_taken_on(play: Play) -> None:
    log = play.log("a")
    play.append(log, "first")
    play.force(log, "forced")
    assert play.finish() == ["first"]
    assert play.finish() == ["forced"]
    log.fail(OSError("broken"))
    play.force(log, "forced")
    assert play.heard == ["forced broken"]


def test_many_logs_are_synced_in_several_passes(make_batch: Callable[..., memoryview], monkeypatch: Any) -> None:
    """Listing what to sync for thousands of logs would hold the loop for too long."""
    monkeypatch.setattr(flusher, "LOGS_AT_ONCE", 3)
    taken: list[int] = []
    run = flusher.run_tickets
    monkeypatch.setattr(flusher, "run_tickets", lambda *args: taken.append(len(args[2])) or run(*args))
    play = Play(make_batch)
    logs = [play.log(f"a{number}") for number in range(9)]
    for number, log in enumerate(logs):
        play.append(log, str(number))
    while play.workers.jobs:
        play.workers.finish()
    assert sorted(play.heard) == [str(number) for number in range(9)]
    assert sum(taken) == 9
    assert max(taken) == 3
