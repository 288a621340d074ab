"""Workers whose threads take turns by seed, while partitions move: each order of steps can be played again.

Time is made up, so that a second that a worker waits costs nothing, and one that stands still is known at once.
MILLPOND_SEED moves all seeds; with it and `-k` a single one is played again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from client import stub_group
from client.crew import DELIVERIES, IN_ORDER, IN_TOPICS, Crew, lose_chance
from client.stub_group import TOPIC, Group, StubConsumer, StubSender
from millpond import Worker
from millpond.client import committers, consumer, engine, in_flight, lanes, outcomes, progress, runners, transactions
from millpond.client.consumer import Consumer
from millpond.client.engine import Engine
from millpond.client.in_flight import InFlight
from millpond.client.lanes import Lanes
from support.patience import with_time
from support.seeds import fresh_seed, seeds
from support.turns import Stalled, Turns

ROUNDS = 3
MANY = 150
MUTANT_SEEDS = 25
RECORDS_EACH = 40
STILL_SECONDS = 20.0
"""Of made-up time without a commit: longer than all that a worker waits for on purpose."""

Patch = pytest.MonkeyPatch

WATCHED = (consumer, engine, in_flight, lanes, progress, runners, committers, transactions, stub_group)


class Schedule:
    """One order of steps. The seed also chooses the group's behaviour, the worker's options and slow handlers."""

    def __init__(self, seed: int, delivery: str, kind: type[Group], patch: Patch) -> None:
        self.seed = seed
        self.turns = Turns(seed, WATCHED)
        self._replace_threads_and_time(patch)
        self._dice = random.Random(seed)
        self._slow_chance = self._dice.choice([0.0, 0.01, 0.1])
        retries = self._dice.choice([IN_ORDER, IN_ORDER, IN_TOPICS]) if delivery != "at_most_once" else IN_ORDER
        lock: Any = self.turns.condition()
        self.group = kind(
            seed,
            records_each=RECORDS_EACH,
            lose_chance=lose_chance(delivery),
            retry_topics=tuple(retries.topics(TOPIC)),
            idle_s=0.005,
            stirs_max=self._dice.choice([3, 10, 30, 1_000]),
            lock=lock,
        )
        self.crew = Crew(
            self.group,
            delivery,
            patch,
            sender=StubSender(self.group, self._later) if delivery == "at_least_once" else None,
            work=self._work,
            fail_chance=self._dice.choice([0.01, 0.2]) if retries is IN_ORDER else 0.4,
            retries=retries,
            concurrency=self._dice.choice([1, 2, 3]),
            in_flight_max=self._dice.choice([2, 10, 40]),
        )

    def run(self) -> None:
        self.turns.run(self._body)
        self.crew.check()

    def _replace_threads_and_time(self, patch: Patch) -> None:
        turns = self.turns
        for module in (consumer, engine, outcomes, committers, transactions, stub_group):
            patch.setattr(module, "time", turns.clock)
        patch.setattr(sys.modules[Worker.__module__], "Thread", turns.thread)
        patch.setattr(runners, "Thread", turns.thread)
        patch.setattr(runners, "SimpleQueue", turns.queue)
        patch.setattr(runners, "Semaphore", turns.semaphore)
        # One thing that is both, as the one is made of the other.
        patch.setattr(in_flight, "RLock", turns.condition)
        patch.setattr(in_flight, "Condition", lambda lock: lock)

    def _body(self) -> None:
        turns, group, crew = self.turns, self.group, self.crew
        crew.start()
        done, since = {}, turns.now
        while not crew.is_over():
            turns.sleep(0.01)
            if done != group.committed:
                done, since = dict(group.committed), turns.now
            if turns.now - since > STILL_SECONDS:
                raise Stalled(f"seed {self.seed} stands still\n{crew.describe()}")
        crew.stop()

    def _work(self) -> None:
        if self._dice.random() < self._slow_chance:
            self.turns.sleep(self._dice.expovariate(1 / 0.1))

    def _later(self, arrive: Callable[[], None]) -> None:
        seconds = self._dice.expovariate(1 / 0.002)

        def deliver() -> None:
            self.turns.sleep(seconds)
            arrive()

        self.turns.thread(deliver, "delivery").start()


def schedule(seed: int, delivery: str, kind: type[Group] = Group) -> Turns:
    with pytest.MonkeyPatch.context() as patch:
        one = Schedule(seed, delivery, kind, patch)
        one.run()
        return one.turns


@pytest.mark.parametrize("seed", seeds(range(ROUNDS)))
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_no_order_of_steps_stops_a_worker_or_skips_a_record(seed: int, delivery: str) -> None:
    schedule(seed, delivery)


@with_time
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_no_order_of_steps_of_many(delivery: str) -> None:
    first = fresh_seed()
    for seed in range(first, first + MANY):
        print(f"MILLPOND_SEED={seed}")
        schedule(seed, delivery)


def test_a_seed_plays_the_same_every_time() -> None:
    first, second = schedule(*seeds([3]), "at_least_once"), schedule(*seeds([3]), "at_least_once")
    assert (first.taken, first.now) == (second.taken, second.now)


# Bugs put in on purpose: some order of steps must show each.


class GivesOnOnlyWhatIsTaken(Group):
    """What this stand-in did once: a member that is removed while it takes up a partition lets go of that one, too,
    and the group goes on as if it had it."""

    def lose(self, member: StubConsumer) -> None:
        with self.lock:
            self.losses += 1
            member.is_removed = True
            member.queue.appendleft(("lost", None))
            for name in member.owned:
                if self.holders[name] is member:
                    self.give(name, self.chance.choice(self.members))


def keep_the_lane_of_what_is_dropped(patch: Patch) -> None:
    def drop(self: InFlight, partitions: Any, *, keep_gaps: bool) -> None:
        with self.lock:
            self._delayed = [each for each in self._delayed if each[2].partition not in partitions]
            self._lanes.drop(lambda job: job.partition in partitions)

    patch.setattr(InFlight, "drop", drop)


def release_nobody_behind_what_is_dropped(patch: Patch) -> None:
    def drop(self: Lanes[Any], unwanted: Callable[[Any], bool]) -> list[Any]:
        gone = [item for _, item in self._ready if unwanted(item)]
        self._ready = type(self._ready)(each for each in self._ready if not unwanted(each[1]))
        return gone

    patch.setattr(Lanes, "drop", drop)


def keep_what_was_popped_of_others(patch: Patch) -> None:
    real = Consumer._buffer_records

    def keep(self: Consumer, popped: list[Any]) -> None:
        self._revoked_during_poll.clear()
        real(self, popped)

    patch.setattr(Consumer, "_buffer_records", keep)


def stay_paused(patch: Patch) -> None:
    patch.setattr(Consumer, "resume", lambda *_: None)


def give_back_what_still_runs(patch: Patch) -> None:
    patch.setattr(Engine, "_is_quiet", lambda *_: True)


def start_nobody_after_a_wait(patch: Patch) -> None:
    def resume_due(self: Engine, now: float) -> None:
        self._in_flight.wake(now)

    patch.setattr(Engine, "_resume_due", resume_due)


MUTANTS = [
    keep_the_lane_of_what_is_dropped,
    release_nobody_behind_what_is_dropped,
    keep_what_was_popped_of_others,
    stay_paused,
    give_back_what_still_runs,
    start_nobody_after_a_wait,
]


def is_found(seed: int, kind: type[Group] = Group) -> bool:
    try:
        schedule(seed, "at_least_once", kind)
    except AssertionError:
        return True
    return False


@with_time
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_in_the_worker_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert any(is_found(seed) for seed in seeds(range(MUTANT_SEEDS)))


@with_time
def test_a_partition_that_is_nobodys_is_found() -> None:
    assert any(is_found(seed, GivesOnOnlyWhatIsTaken) for seed in seeds(range(MUTANT_SEEDS)))
