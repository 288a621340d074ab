"""Bugs of coordinators put in on purpose: the simulator must find each within a few seeds, by the violation that it
stands for. An exception is no finding: it may only say that the mutant does not fit the code any more."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.coordination.markers import _Delivery
from millpond.coordinators.groups import classic
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.offsets import Offsets
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.shard import Effects
from millpond.coordinators.transactions import outcome, renewal
from millpond.coordinators.transactions.shard import TransactionShard
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Verdict
from millpond.log import producers
from millpond.log.partition_log import PartitionLog
from millpond.log.producers import ProducerStates
from millpond.sim.coordination.plan import Churn, ChurnPlan, CoordinationPlan, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.scenario import CoordinationScenario

pytestmark = pytest.mark.slow

SEEDS_MAX = 25

Patch = pytest.MonkeyPatch


# Coordinators in general


def reply_before_the_sync(patch: Patch) -> None:
    def answer_later(self: ShardHost[Any], effects: Effects) -> None:
        self._uncommitted.append((self.partition.log.end_offset, effects))
        self._answer(self.partition.log.end_offset)

    patch.setattr(ShardHost, "_answer_later", answer_later)


# Groups


def forget_pending_offsets_on_restart(patch: Patch) -> None:
    real = GroupShard.on_loaded

    def on_loaded(self: GroupShard, now_ms: int) -> Effects:
        self.offsets.pending.clear()
        self.offsets._producers.clear()
        return real(self, now_ms)

    patch.setattr(GroupShard, "on_loaded", on_loaded)


def count_pending_offsets_at_once(patch: Patch) -> None:
    real = Offsets.replay_pending

    def replay_pending(self: Offsets, producer_id: int, epoch: int, key: Any, committed: Any) -> None:
        real(self, producer_id, epoch, key, committed)
        self.replay(key, committed)

    patch.setattr(Offsets, "replay_pending", replay_pending)


def take_commits_of_old_generations(patch: Patch) -> None:
    patch.setattr(classic.ClassicGroup, "check_commit", lambda *_, **__: None)


def take_commits_of_old_epochs(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "check_commit", lambda *_, **__: None)


def tell_unstable_offsets(patch: Patch) -> None:
    patch.setattr(Offsets, "is_pending", lambda *_: False)


def forget_members_on_restart(patch: Patch) -> None:
    real = GroupShard.on_loaded

    def on_loaded(self: GroupShard, now_ms: int) -> Effects:
        for group_id in list(self.groups):
            del self.groups[group_id]
        return real(self, now_ms)

    patch.setattr(GroupShard, "on_loaded", on_loaded)


def lose_offsets_on_restart(patch: Patch) -> None:
    real = GroupShard.on_loaded

    def on_loaded(self: GroupShard, now_ms: int) -> Effects:
        self.offsets.by_group.clear()
        return real(self, now_ms)

    patch.setattr(GroupShard, "on_loaded", on_loaded)


# Transactions


def send_no_markers_after_a_restart(patch: Patch) -> None:
    patch.setattr(TransactionShard, "on_loaded", lambda *_: Effects())


def take_offline_for_deleted(patch: Patch) -> None:
    """A partition that is not open here gets no marker: the transaction is torn."""
    real = _Delivery._write_here

    def write_here(self: _Delivery, target: Any) -> None:
        if self._broker.partitions.by_id(*target) is None:
            self._left.pop(target)
        else:
            real(self, target)

    patch.setattr(_Delivery, "_write_here", write_here)


def renew_without_a_higher_epoch(patch: Patch) -> None:
    real = renewal.renew

    def renew(current: Any, *given: Any) -> Verdict:
        verdict = real(current, *given)
        if verdict.steps and verdict.steps[-1].state is State.EMPTY:
            return Verdict(verdict.error, (replace(verdict.steps[-1], producer_epoch=current.producer_epoch),))
        return verdict

    patch.setattr(renewal, "renew", renew)


def take_new_records_for_old_ones(patch: Patch) -> None:
    """A producer that restarts its sequences in the same epoch has its records taken for duplicates."""
    renew_without_a_higher_epoch(patch)
    patch.setattr(producers, "_check_unused", lambda *_: None)


def fence_without_a_higher_epoch(patch: Patch) -> None:
    """The older worker can continue with its epoch, as if it had no successor."""
    renew_without_a_higher_epoch(patch)
    real = outcome.fence

    def fence(current: Any, *given: Any) -> Verdict:
        verdict = real(current, *given)
        steps = tuple(replace(step, producer_epoch=current.producer_epoch) for step in verdict.steps)
        return Verdict(verdict.error, steps)

    patch.setattr(renewal, "fence", fence)


def skip_the_verification(patch: Patch) -> None:
    """Every producer is assumed to have an open transaction."""
    patch.setattr(ProducerStates, "_check_transaction", lambda *_: None)
    patch.setattr(ProducerStates, "is_permitted", lambda *_: True)


def let_a_late_end_decide_the_next_transaction(patch: Patch) -> None:
    real = outcome.end

    def end(current: Any, producer_id: int, epoch: int, *given: Any) -> Verdict:
        is_late = current is not None and current.state is State.ONGOING and epoch < current.producer_epoch
        return real(current, producer_id, current.producer_epoch if is_late else epoch, *given)

    patch.setattr(outcome, "end", end)


def forget_a_partition(patch: Patch) -> None:
    """The last partition of a transaction gets no marker."""
    real = TransactionShard._order

    def order(self: TransactionShard, decided: Any) -> Any:
        whole = real(self, decided)
        return replace(whole, partitions=whole.partitions[:-1])

    patch.setattr(TransactionShard, "_order", order)


def let_transactions_last(patch: Patch) -> None:
    patch.setattr(TransactionShard, "next_deadline_ms", lambda _: None)


def commit_what_was_aborted_by_a_successor(patch: Patch) -> None:
    real = outcome.fence

    def fence(*given: Any) -> Verdict:
        verdict = real(*given)
        steps = tuple(
            replace(step, state=State.PREPARE_COMMIT) if step.state is State.PREPARE_ABORT else step
            for step in verdict.steps
        )
        return Verdict(verdict.error, steps)

    patch.setattr(renewal, "fence", fence)


def show_everything_to_everybody(patch: Patch) -> None:
    patch.setattr(PartitionLog, "stable_offset", lambda _, high_watermark: high_watermark)


class Mutation(NamedTuple):
    """As what a mutant shows, a pattern of the checker's words, and where: faults, work, sharing; and the seed to
    begin with, to be quick."""

    violation: str
    kinds: tuple[str, ...]
    work: Work
    sharing: Sharing | None = None
    first: int = 0
    versions: tuple[bool, ...] = (True, False)
    freezes: bool = False
    """Everybody is frozen now and then, longer than a session and not as long as a transaction."""
    strays: bool = False
    """Everybody's requests lose their way now and then."""


FELL_BACK = r"heard -?\d+ for partition \d+, after \d+ was (acknowledged|committed)"
TOO_EARLY = "which no transaction committed"
SEEN_TOO_EARLY = "before its commit was asked for|was seen at .*, and is not committed"
TWICE = r"was copied by \["
TWO_OWNERS = r"was given .*, which .* has until|generation \d+ gives"
STUCK = "the group reached .* ms of peace|a transaction hangs"

KILLS = ("kill", "power cut")
CALM = ("slow network", "slow disk")

MUTANTS: dict[Callable[[Patch], None], Mutation] = {
    reply_before_the_sync: Mutation(FELL_BACK, ("power cut", "slow disk"), Work.READ),
    forget_pending_offsets_on_restart: Mutation(FELL_BACK, ("kill", "slow disk"), Work.COPY),
    count_pending_offsets_at_once: Mutation(TOO_EARLY, CALM, Work.COPY),
    take_commits_of_old_generations: Mutation(FELL_BACK, CALM, Work.READ, Sharing.CLASSIC, 80, freezes=True),
    take_commits_of_old_epochs: Mutation(FELL_BACK, CALM, Work.READ, Sharing.CONSUMER, 67, freezes=True),
    tell_unstable_offsets: Mutation(TWICE, CALM, Work.COPY, Sharing.CLASSIC, 6, freezes=True),
    lose_offsets_on_restart: Mutation(FELL_BACK, KILLS, Work.READ),
    forget_members_on_restart: Mutation(TWO_OWNERS, ("kill",), Work.READ),
    send_no_markers_after_a_restart: Mutation(STUCK, ("kill", "slow disk"), Work.COPY),
    take_new_records_for_old_ones: Mutation("was never copied", CALM, Work.COPY, Sharing.FIXED, 0, (False,)),
    fence_without_a_higher_epoch: Mutation(TWICE, CALM, Work.COPY, Sharing.FIXED, 27),
    skip_the_verification: Mutation(f"{TWICE}|{STUCK}", CALM, Work.COPY, None, 30, (False,), strays=True),
    let_a_late_end_decide_the_next_transaction: Mutation(
        "before its commit was asked for", CALM, Work.COPY, None, 0, (True,)
    ),
    take_offline_for_deleted: Mutation(f"{TWICE}|counts in part", ("offline partition",) * 3, Work.COPY, first=124),
    forget_a_partition: Mutation("a transaction hangs", CALM, Work.COPY),
    let_transactions_last: Mutation(STUCK, CALM, Work.COPY),
    commit_what_was_aborted_by_a_successor: Mutation(TOO_EARLY, CALM, Work.COPY),
    show_everything_to_everybody: Mutation(
        "was seen at .*, and is not committed|before its commit was asked for", CALM, Work.COPY
    ),
}


def plan(seed: int, hunt: Mutation) -> CoordinationPlan:
    made = make_coordination_plan(seed, hunt.kinds, work=hunt.work, sharing=hunt.sharing, versions=hunt.versions)
    if hunt.strays:
        made.workers = [replace(style, sends_late=True) for style in made.workers]
    if hunt.freezes:
        made.workers = [replace(style, timeout_ms=5_000, pace_ms=300, ends_slowly=True) for style in made.workers]
        made.churn = [
            ChurnPlan(Churn.FREEZE, 1_500 + 4_000 * turn + 700 * slot, slot, 3_000)
            for turn in range(2)
            for slot in range(len(made.workers))
        ]
    return made


def find(hunt: Mutation) -> int | None:
    """The first seed with the violation that the mutant stands for."""
    for seed in range(hunt.first, hunt.first + SEEDS_MAX):
        violations = CoordinationScenario(seed, plan(seed, hunt)).run().violations
        if any(re.search(hunt.violation, each) for each in violations):
            return seed
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_finds(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    assert find(MUTANTS[mutant]) is not None, f"{SEEDS_MAX} seeds did not notice"


@pytest.mark.parametrize("hunt", [hunt for hunt in MUTANTS.values() if hunt.first or hunt.freezes or hunt.strays])
def test_without_mutants_the_same_seeds_find_nothing(hunt: Mutation) -> None:
    assert CoordinationScenario(hunt.first, plan(hunt.first, hunt)).run().violations == []
