"""Bugs put in on purpose: the simulator must find each within a few seeds, or it would not find the real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.later import done
from millpond.broker import flusher
from millpond.broker.apis import k01_fetch
from millpond.broker.checkpoint_writer import CheckpointWriter
from millpond.broker.controller import Controller
from millpond.log import durability, recovery, store
from millpond.log.partition_log import PartitionLog
from millpond.log.producers import ProducerStates
from millpond.sim.records.plan import Plan, make_plan
from millpond.sim.records.scenario import Scenario
from millpond.sim.world.disk import PowerCut

SEEDS_MAX = 40

Patch = pytest.MonkeyPatch


def acknowledge_before_the_sync(patch: Patch) -> None:
    def after_sync(self: flusher.Flusher, log: PartitionLog, end_offset: int, on_synced: flusher.OnSynced) -> None:
        on_synced(None)

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

    def submit(self: Controller, decide: Any, done: Callable[[Any], None], failed: Any) -> None:
        replies: list[Any] = []

        def decide_and_tell(image: Any) -> Any:
            decision = decide(image)
            replies.append(decision.reply)
            return decision

        real(self, decide_and_tell, lambda _: None, lambda _: None)
        if replies:
            done(replies[0])

    patch.setattr(Controller, "submit", submit)


def forget_a_moved_start(patch: Patch) -> None:
    patch.setattr(CheckpointWriter, "write", lambda _: done(None))


def read_twice_while_warming(patch: Patch) -> None:
    patch.setattr(k01_fetch._Fetch, "_is_waiting", lambda self: not self._wait.ended)


POWER = ("power cut", "power cut at operation")

MUTANTS: dict[Callable[[Patch], None], tuple[tuple[str, ...], int]] = {
    acknowledge_before_the_sync: (POWER, 1),
    retry_a_failed_sync: (("failing sync",), 6),
    forget_a_failed_sync_on_restart: (("failing sync, then kill", "power cut"), 0),
    forget_producers_on_restart: (("kill", "slow disk"), 16),
    keep_a_torn_tail: (POWER, 5),
    sync_no_folders: (POWER, 1),
    sync_the_active_segment_only: (POWER, 27),
    answer_metadata_before_the_sync: (("power cut", "slow disk"), 9),
    forget_a_moved_start: (POWER, 1),
    read_twice_while_warming: (("cold disk", "slow disk"), 25),
}
"""The kinds of faults under which a mutant shows, and the seed to begin with: the one before the first that found it,
to be quick. Any of the next `SEEDS_MAX` will do."""


def plan(seed: int, kinds: tuple[str, ...]) -> Plan:
    return replace(make_plan(seed, kinds), admin_operations=3)


def find(kinds: tuple[str, ...], first: int = 0) -> int | None:
    """The first seed that finds something wrong."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            if Scenario(seed, plan(seed, kinds)).run().violations:
                return seed
        except (Exception, PowerCut):
            return seed
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert find(*MUTANTS[mutant]) is not None, f"{SEEDS_MAX} seeds did not notice"


@pytest.mark.parametrize("kinds", sorted({kinds for kinds, _ in MUTANTS.values()}))
def test_without_mutants_the_same_seeds_find_nothing(kinds: tuple[str, ...]) -> None:
    for seed in range(4):
        assert Scenario(seed, plan(seed, kinds)).run().violations == []
