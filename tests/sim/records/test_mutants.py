"""Bugs put in on purpose: the simulator must find each within a few seeds, or it would not find the real ones.

A mutant counts as found only by the violation that it stands for. An exception is no finding: it may only say that
the mutant does not fit the code any more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from millpond.base.later import Later, done
from millpond.broker.controller.controller import Controller
from millpond.broker.fetch.consumer_fetch import ConsumerFetch
from millpond.broker.storage import flusher
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.log import durability, recovery, store
from millpond.log.partition_log import PartitionLog
from millpond.log.producers import ProducerStates
from millpond.sim.records.plan import Plan, make_plan
from millpond.sim.records.scenario import Scenario

pytestmark = pytest.mark.slow

SEEDS_MAX = 40

Patch = pytest.MonkeyPatch


def acknowledge_before_the_sync(patch: Patch) -> None:
    def after_sync(self: flusher.Flusher, log: PartitionLog, end_offset: int, value: Any) -> Later[Any]:
        return done(value)

    patch.setattr(flusher.Flusher, "after_sync", after_sync)


def retry_a_failed_sync(patch: Patch) -> None:
    def run(ticket: durability.SyncTicket) -> None:
        for _ in range(5):
            with contextlib.suppress(OSError):
                return real(ticket)
        return real(ticket)

    real = durability.SyncTicket.run
    patch.setattr(durability.SyncTicket, "run", run)


def forget_a_failed_sync_on_restart(patch: Patch) -> None:
    patch.setattr(durability.Durability, "mark_failure", lambda _: None)
    mark_a_failed_sync_late(patch)


def mark_a_failed_sync_late(patch: Patch) -> None:
    patch.setattr(durability.SyncTicket, "mark_loss", lambda *_: None)


def forget_producers_on_restart(patch: Patch) -> None:
    def open_log(*given: Any) -> PartitionLog:
        log = recovery.open_log(*given)
        log.producers = ProducerStates()
        return log

    patch.setattr(store, "open_log", open_log)


def keep_a_torn_tail(patch: Patch) -> None:
    patch.setattr(recovery._Opener, "_cut", lambda *_: None)


def sync_no_folders(patch: Patch) -> None:
    def run(ticket: durability.SyncTicket) -> None:
        ticket.folders = set()
        real(ticket)

    real = durability.SyncTicket.run
    patch.setattr(durability.SyncTicket, "run", run)


def sync_the_active_segment_only(patch: Patch) -> None:
    def run(ticket: durability.SyncTicket) -> None:
        for file in ticket.files[-1:]:
            file.sync()
        for folder in sorted(ticket.folders):
            ticket.disk.sync_folder(folder)
        for path, data in ticket.replacements:
            ticket.disk.replace(path, data)

    patch.setattr(durability.SyncTicket, "run", run)


def answer_metadata_before_the_sync(patch: Patch) -> None:
    real = Controller.submit

    def submit(self: Controller, decide: Any, **named: Any) -> Later[Any]:
        replies: list[Any] = []

        def decide_and_tell(image: Any) -> Any:
            decision = decide(image)
            replies.append(decision.reply)
            return decision

        later = real(self, decide_and_tell, **named)
        if not replies:
            return later
        later.then(lambda _: None, lambda _: None)
        return done(replies[0])

    patch.setattr(Controller, "submit", submit)


def forget_a_moved_start(patch: Patch) -> None:
    patch.setattr(CheckpointWriter, "write", lambda _: done(None))


def read_twice_while_warming(patch: Patch) -> None:
    patch.setattr(ConsumerFetch, "_is_waiting", lambda self: not self.ended)


class Mutation(NamedTuple):
    """Where a mutant shows, and as what."""

    kinds: tuple[str, ...]
    """Of the faults under which it does."""
    first: int
    """The seed to begin with, to be quick: the one before the first that found it. Any of the next `SEEDS_MAX` do."""
    violation: str
    """What it is found by: a pattern of the checker's words."""


POWER = ("power cut", "power cut at operation")
LOST = r"the acknowledged '.*' at offset \d+ is gone|the latest record of key .* is gone|was acknowledged to be"

MUTANTS: dict[Callable[[Patch], None], Mutation] = {
    acknowledge_before_the_sync: Mutation(POWER, 1, LOST),
    retry_a_failed_sync: Mutation(("failing sync",), 6, LOST),
    forget_a_failed_sync_on_restart: Mutation(("failing sync, then kill", "power cut"), 12, LOST),
    forget_producers_on_restart: Mutation(("kill", "slow disk"), 16, "is there twice"),
    keep_a_torn_tail: Mutation(POWER, 5, "bytes follow the last whole batch"),
    sync_no_folders: Mutation(POWER, 1, LOST),
    sync_the_active_segment_only: Mutation(POWER, 27, "bytes follow the last whole batch"),
    answer_metadata_before_the_sync: Mutation(("power cut", "slow disk"), 142, "acknowledged was"),
    forget_a_moved_start: Mutation(POWER, 1, "is there again, although all before"),
    read_twice_while_warming: Mutation(("cold disk", "slow disk"), 25, r"when \d+ was asked for and \d+ was due"),
}


def plan(seed: int, kinds: tuple[str, ...]) -> Plan:
    return replace(make_plan(seed, kinds), admin_operations=3)


def find(hunt: Mutation) -> int | None:
    """The first seed with the violation that the mutant stands for."""
    for seed in range(hunt.first, hunt.first + SEEDS_MAX):
        violations = Scenario(seed, plan(seed, hunt.kinds)).run().violations
        if any(re.search(hunt.violation, each) for each in violations):
            return seed
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert find(MUTANTS[mutant]) is not None, f"{SEEDS_MAX} seeds did not notice"


@pytest.mark.parametrize("kinds", sorted({hunt.kinds for hunt in MUTANTS.values()}))
def test_without_mutants_the_same_seeds_find_nothing(kinds: tuple[str, ...]) -> None:
    for seed in range(4):
        assert Scenario(seed, plan(seed, kinds)).run().violations == []
