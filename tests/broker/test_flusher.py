"""Group commit: one sync for all who wait, one ticket per log at a time, and a failure that nobody talks away."""

from __future__ import annotations

import errno

import pytest

from millpond.broker.flusher import Flusher


class FakeTicket:
    def __init__(self, log: FakeLog, offset: int) -> None:
        self.log = log
        self.offset = offset

    def run(self) -> None:
        if self.log.broken:
            raise OSError(errno.EIO, "the disk is broken")


class FakeLog:
    """As much of a log as the flusher knows."""

    def __init__(self, name: str) -> None:
        self.folder = name
        self.end_offset = self.synced_offset = 0
        self.failed: OSError | None = None
        self.closed = False
        self.broken = False
        self.tickets = 0

    def sync_target(self) -> FakeTicket:
        self.tickets += 1
        return FakeTicket(self, self.end_offset)

    def synced(self, ticket: FakeTicket) -> None:
        self.synced_offset = ticket.offset

    def fail(self, error: OSError, ticket: FakeTicket) -> None:
        self.failed = error


class Hands:
    """Workers that do a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list = []

    def run(self, job, done, failed) -> None:
        self.jobs.append((job, done))

    def work(self) -> None:
        job, done = self.jobs.pop(0)
        done(job())


class Play:
    def __init__(self) -> None:
        self.hands = Hands()
        self.flusher = Flusher(self.hands)
        self.heard: list[str] = []
        self.one, self.other, self.third = FakeLog("one"), FakeLog("other"), FakeLog("third")

    def append(self, log: FakeLog, who: str) -> None:
        """Write one record and wait for it to be safe."""
        log.end_offset += 1
        self.flusher.after_sync(
            log, log.end_offset, lambda error: self.heard.append(f"{who} failed" if error else f"{who} safe")
        )


@pytest.fixture
def play() -> Play:
    return Play()


def test_all_who_wait_when_a_sync_begins_are_served_by_it(play: Play) -> None:
    play.append(play.one, "a")
    play.append(play.one, "b")
    play.append(play.one, "c")
    play.hands.work()
    assert play.heard == ["a safe"]
    play.hands.work()
    assert play.heard == ["a safe", "b safe", "c safe"]
    assert play.one.tickets == 2
    assert play.flusher.is_idle()


def test_a_log_has_one_ticket_at_a_time_while_others_go_on(play: Play) -> None:
    play.append(play.one, "a")
    play.append(play.one, "b")
    play.append(play.other, "c")
    assert len(play.hands.jobs) == 2
    assert (play.one.tickets, play.other.tickets) == (1, 1)


def test_at_most_two_rounds_run_at_once_and_a_round_takes_every_log_that_waits(play: Play) -> None:
    play.append(play.one, "a")
    play.append(play.other, "b")
    play.append(play.third, "c")
    play.append(play.one, "d")
    assert len(play.hands.jobs) == 2
    play.hands.work()
    assert len(play.hands.jobs) == 2
    play.hands.work()
    play.hands.work()
    assert play.heard == ["a safe", "b safe", "c safe", "d safe"]


def test_what_is_safe_already_is_answered_at_once(play: Play) -> None:
    play.one.end_offset = play.one.synced_offset = 7
    play.flusher.after_sync(play.one, 7, lambda error: play.heard.append(str(error)))
    assert play.heard == ["None"]
    assert play.flusher.is_idle()


def test_a_failed_sync_fails_all_who_wait_and_closes_the_log(play: Play) -> None:
    play.append(play.one, "a")
    play.append(play.one, "b")
    play.one.broken = True
    play.hands.work()
    assert play.heard == ["b failed", "a failed"]
    assert play.one.failed is not None
    assert play.one.tickets == 1
    play.one.broken = False
    play.append(play.one, "c")
    assert play.heard[-1] == "c failed"
    assert play.hands.jobs == []


def test_a_failure_of_one_log_is_not_that_of_another(play: Play) -> None:
    play.append(play.third, "x")
    play.append(play.third, "y")
    play.append(play.other, "z")
    play.one.broken = True
    play.append(play.one, "a")
    play.append(play.other, "b")
    while play.hands.jobs:
        play.hands.work()
    assert sorted(play.heard) == ["a failed", "b safe", "x safe", "y safe", "z safe"]


def test_those_who_wait_for_a_log_that_is_deleted_are_told(play: Play) -> None:
    play.append(play.one, "a")
    play.append(play.one, "b")
    play.one.closed = True
    play.hands.work()
    assert sorted(play.heard) == ["a safe", "b failed"]
    play.append(play.one, "c")
    assert play.heard[-1] == "c failed"
    assert play.flusher.is_idle()
