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


class FlusherHost:
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
def host(make_batch: Callable[..., memoryview]) -> FlusherHost:
    return FlusherHost(make_batch)


def test_all_who_wait_share_one_sync(host: FlusherHost) -> None:
    log = host.log("a")
    before = host.syncs("a")
    host.append(log, "first")
    for number in range(5):
        host.append(log, str(number))
    assert len(host.workers.jobs) == 1, "a log is in one round at a time"
    assert host.finish() == ["first"]
    assert host.finish() == ["0", "1", "2", "3", "4"]
    assert host.syncs("a") - before == 2
    assert log.synced_offset == 6
    assert host.flusher.is_idle()


def test_a_waiter_is_notified_only_after_its_own_records_are_synced(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "first")
    host.append(log, "second")
    # The first round was assembled before the second record was written, so it does not cover it.
    assert host.finish() == ["first"]
    assert (log.synced_offset, log.end_offset) == (1, 2)
    host.wait(log, "earlier", end_offset=1)
    assert host.heard == ["earlier"]


def test_what_is_safe_already_is_told_at_once(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "a")
    host.finish()
    host.wait(log, "again")
    host.wait(log, "earlier", end_offset=0)
    assert host.heard == ["again", "earlier"]
    assert host.workers.jobs == []


def test_one_round_takes_all_logs_that_wait(host: FlusherHost) -> None:
    logs = [host.log(name) for name in "abcd"]
    for log in logs[:ROUNDS_MAX]:
        host.append(log, log.folder[-3:])
    assert len(host.workers.jobs) == ROUNDS_MAX
    for log in logs[ROUNDS_MAX:]:
        host.append(log, log.folder[-3:])
    assert len(host.workers.jobs) == ROUNDS_MAX, "no more rounds at once than there may be"
    assert host.finish(0) == ["a-0"]
    assert host.finish(1) == ["c-0", "d-0"], "both in the round that began when the first had ended"
    assert host.finish(0) == ["b-0"]
    assert host.flusher.is_idle()


def test_a_slow_log_does_not_hold_up_another(host: FlusherHost) -> None:
    slow, quick = host.log("slow"), host.log("quick")
    host.append(slow, "slow")
    host.append(quick, "quick")
    host.append(slow, "slow again")
    assert host.finish(1) == ["quick"]
    host.append(quick, "quick again")
    assert host.finish(1) == ["quick again"]
    assert host.finish(0) == ["slow"]
    assert host.finish(0) == ["slow again"]


def test_a_failed_sync_fails_all_who_wait_and_closes_the_log(host: FlusherHost) -> None:
    bad, good = host.log("bad"), host.log("good")
    for log in (bad, good):
        host.append(log, f"{log.folder} first")
    host.workers.jobs.reverse()
    host.disk.fail_syncs("/bad-0/")
    host.append(bad, "behind")
    host.workers.jobs.reverse()
    assert host.finish(0) == ["behind failed", "/data/bad-0 first failed"]
    assert host.finish(0) == ["/data/good-0 first"]
    assert bad.failed is not None
    # The disk works again, but what it lost cannot be trusted.
    before = host.syncs("bad")
    host.wait(bad, "later")
    assert host.heard == ["later failed"]
    assert host.syncs("bad") == before
    assert host.flusher.is_idle()


def test_one_bad_log_of_a_round_does_not_fail_the_others(host: FlusherHost) -> None:
    one, two, bad, good = (host.log(name) for name in ("one", "two", "bad", "good"))
    for log in (one, two, bad, good):
        host.append(log, log.folder[6:])
    host.disk.fail_syncs("/bad-0/")
    assert host.finish(0) == ["one-0"]
    assert host.finish(0) == ["two-0"]
    assert host.finish(0) == ["bad-0 failed", "good-0"]


def test_a_log_that_is_deleted_while_it_waits_for_a_round_is_given_up(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "first")
    host.append(log, "second")
    host.store.delete(TopicPartition("a", 0))
    heard = host.finish()
    assert heard[0] == "second failed"
    assert host.flusher.is_idle()
    host.wait(log, "third")
    assert host.heard == ["third failed"]


def test_files_are_kept_open_for_the_round_only(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "a")
    log.abandon()
    assert host.disk.open_files > 0
    host.finish()
    assert host.disk.open_files == 0


def test_a_notified_waiter_may_wait_again(host: FlusherHost) -> None:
    log = host.log("a")
    log.append(host._make_batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
    host.flusher.after_sync(log, 1, None).then(lambda _: host.append(log, "again"))
    assert host.finish() == []
    assert host.finish() == ["again"]


def test_a_fault_of_our_own_is_not_hidden(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "a")
    _, later = host.workers.jobs.pop()
    with pytest.raises(ZeroDivisionError):
        later.fail(ZeroDivisionError())


def test_a_fault_of_the_world_outside_of_any_file_fails_the_round(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "a")
    _, later = host.workers.jobs.pop()
    later.fail(OSError("the worker could not open anything"))
    assert host.heard == ["a failed"]
    assert log.failed is not None
    assert host.flusher.is_idle()


def test_a_bug_in_one_waiter_does_not_affect_the_others(host: FlusherHost) -> None:
    x, y, one, two = (host.log(name) for name in ("x", "y", "one", "two"))
    host.append(x, "x")
    host.append(y, "y")
    for log in (one, two):
        log.append(host._make_batch(b"v"), leader_epoch=0, now_ms=WALL_START_MS)
        host.flusher.after_sync(log, 1, None).then(lambda _: 1 // 0)  # type: ignore[arg-type]
        host.wait(log, log.folder)
    assert host.finish(0) == ["x"]
    with pytest.raises(ZeroDivisionError):
        host.workers.finish(1)
    assert host.heard == ["/data/one-0", "/data/two-0"]
    host.append(one, "later")
    host.finish(0)
    assert host.finish(0) == ["later"]
    assert host.flusher.is_idle()


def test_names_and_notes_are_forced_though_all_records_are_safe(host: FlusherHost) -> None:
    log = host.store.create(TopicPartition("new", 0), UUID(int=1))
    host.wait(log, "records")
    assert host.heard == ["records"], "there are none"
    assert log.dirty
    host.force(log, "everything")
    assert host.finish() == ["records", "everything"]
    assert not log.dirty
    host.force(log, "again")
    assert host.heard == ["again"]
    host.disk.crash()
    assert host.disk.exists("/data/new-0/partition.metadata")


def test_forcing_waits_for_what_another_round_has_taken_on(host: FlusherHost) -> None:
    log = host.log("a")
    host.append(log, "first")
    host.force(log, "forced")
    assert host.finish() == ["first"]
    assert host.finish() == ["forced"]
    log.fail(OSError("broken"))
    host.force(log, "forced")
    assert host.heard == ["forced broken"]


def test_many_logs_are_synced_in_several_passes(make_batch: Callable[..., memoryview], monkeypatch: Any) -> None:
    """Listing what to sync for thousands of logs would hold the loop for too long."""
    monkeypatch.setattr(flusher, "LOGS_AT_ONCE", 3)
    taken: list[int] = []
    run = flusher.run_tickets
    monkeypatch.setattr(flusher, "run_tickets", lambda *args: taken.append(len(args[2])) or run(*args))
    host = FlusherHost(make_batch)
    logs = [host.log(f"a{number}") for number in range(9)]
    for number, log in enumerate(logs):
        host.append(log, str(number))
    while host.workers.jobs:
        host.workers.finish()
    assert sorted(host.heard) == [str(number) for number in range(9)]
    assert sum(taken) == 9
    assert max(taken) == 3
