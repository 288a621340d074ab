"""Bugs that replication has had, planted: each must cause the violation that names it within a number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.ids import EpochEnd
from millpond.metadata import leadership
from millpond.replication.follower import Effect, Fetched, FetchFrom, PartitionFollower
from millpond.replication.leader import PartitionLeader
from millpond.sim.machines.memory_log import MemoryLog
from millpond.sim.machines.replication import checkers
from millpond.sim.machines.replication.scenario import BrokerHost, Controller, Scenario, run_seed
from millpond.sim.machines.run import NOT_HEALED

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch


def truncate_to_the_high_watermark(patch: Patch) -> None:
    """KIP-101: a follower cuts its log to what it knows as committed, and asks afterwards."""

    def on_follow(self: Scenario, host: BrokerHost) -> None:
        host.log.truncate_to(max(host.high_watermark, 0))
        host.seen_end = host.synced_end = min(host.synced_end, host.log.end_offset)

    patch.setattr(Scenario, "on_follow", on_follow)


def never_look_for_divergence(patch: Patch) -> None:
    """KIP-279: lengths are compared, not epochs."""
    patch.setattr(Scenario, "divergence", lambda *_: None)


def truncate_in_one_step(patch: Patch) -> None:
    """KAFKA-6361: the leader's word alone says where logs part."""

    def parting(self: PartitionFollower, diverging: EpochEnd) -> int:
        return min(diverging.end_offset, self.log.end_offset)

    patch.setattr(PartitionFollower, "_parting", parting)


def commit_with_too_few(patch: Patch) -> None:
    """KIP-966: the high watermark moves on below the least number of replicas in sync."""
    patch.setattr(PartitionLeader, "_min_isr", property(lambda _: 0))
    patch.setattr(PartitionLeader, "is_writable", property(lambda _: True))


def shrink_before_the_controller_agrees(patch: Patch) -> None:
    def maximal_isr(self: PartitionLeader) -> set[int]:
        return set(self.pending.members if self.pending else self.view.isr)

    patch.setattr(PartitionLeader, "maximal_isr", property(maximal_isr))


def join_counts_only_when_agreed(patch: Patch) -> None:
    """KAFKA-12686's sibling: who was asked to join leads although nothing waited for it."""
    patch.setattr(PartitionLeader, "maximal_isr", property(lambda self: set(self.view.isr)))


def join_without_catching_up(patch: Patch) -> None:
    def may_join(self: PartitionLeader, broker: int) -> bool:
        return broker not in self.view.isr and self.can_join(broker, self.followers[broker].broker_epoch)

    patch.setattr(PartitionLeader, "_may_join", may_join)


def readmit_an_earlier_life(patch: Patch) -> None:
    """KIP-903: a request made for an earlier incarnation of a broker adds the new one."""
    patch.setattr(Scenario, "can_join", lambda self, broker, _: self.controller.can_lead(broker))
    patch.setattr(PartitionLeader, "_broker_epoch", lambda *_: -1)


def count_an_earlier_life(patch: Patch) -> None:
    """What a broker had before it started over counts as what it has."""
    real = PartitionLeader.on_fetch

    def on_fetch(self: PartitionLeader, broker: int, broker_epoch: int, offset: int, now_ms: int) -> bool:
        progress = self.followers.get(broker)
        before = progress.end_offset if progress else -1
        return real(self, broker, broker_epoch, max(offset, before), now_ms)

    patch.setattr(PartitionLeader, "on_fetch", on_fetch)


def let_the_fenced_in(patch: Patch) -> None:
    """KAFKA-13916: a fenced replica joins the ISR."""
    real = leadership.decide_isr_change

    def decide(before: Any, asked: Any, rules: Any, can_lead: Any, epoch_of: Callable[[int], int]) -> Any:
        trusting = replace(asked, isr=tuple((broker, -1) for broker, _ in asked.isr))
        return real(before, trusting, rules, lambda _: True, epoch_of)

    patch.setattr(leadership, "decide_isr_change", decide)
    patch.setattr(Scenario, "can_join", lambda *_: True)


def come_back_as_if_nothing_was_lost(patch: Patch) -> None:
    """KAFKA-18106: a broker that lost records stays in sync and leads on in the same epoch."""
    real = Controller.register

    def register(self: Controller, broker: int, incarnation: int, _directory: int, clean_epoch: int) -> int | None:
        return real(self, broker, incarnation, 0, self.epoch_of(broker))

    patch.setattr(Controller, "register", register)


def forget_the_epoch_before(patch: Patch) -> None:
    """The file with the epoch of the last life is taken away when the next one begins, not when it has registered."""
    real = BrokerHost.start

    def start(self: BrokerHost) -> None:
        real(self)
        self.clean_epoch = self.pending = -1

    patch.setattr(BrokerHost, "start", start)


def trust_the_unclean(patch: Patch) -> None:
    """KIP-966: the last replica in sync loses its tail, and leads again as an eligible one."""
    real = leadership.change

    def change(before: Any, isr: Any, rules: Any, can_lead: Any, **named: Any) -> Any:
        named.pop("unclean", None)
        return real(before, isr, rules, can_lead, **named)

    patch.setattr(leadership, "change", change)


def elect_anybody(patch: Patch) -> None:
    """An election outside of ISR and ELR, as if unclean elections were on."""
    real = leadership._elect

    def elect(state: Any, rules: Any, can_lead: Any, **named: Any) -> Any:
        return real(state, replace(rules, may_elect_unclean=True), can_lead, **named)

    patch.setattr(leadership, "_elect", elect)


def keep_the_epoch_over_a_change_of_leader(patch: Patch) -> None:
    real = leadership.change

    def change(before: Any, *given: Any, **named: Any) -> Any:
        after = real(before, *given, **named)
        return replace(after, leader_epoch=before.leader_epoch)

    patch.setattr(leadership, "change", change)


def take_any_answer(patch: Patch) -> None:
    """An answer to an earlier question counts as the answer to this one."""

    def on_response(self: PartitionFollower, asked: FetchFrom, fetched: Fetched) -> list[Effect]:
        self.asked = asked
        return real(self, asked, fetched)

    def on_fetched(self: BrokerHost, follower: Any, life: int, asked: Any, fetched: Any) -> None:
        if self.follower is not None:
            self.follower.asked = asked
            arrived(self, self.follower, self.life, asked, fetched)

    real = PartitionFollower.on_response
    arrived = BrokerHost.on_fetched
    patch.setattr(PartitionFollower, "on_response", on_response)
    patch.setattr(BrokerHost, "on_fetched", on_fetched)


def obey_old_metadata(patch: Patch) -> None:
    """A broker acts on what the controller said to an earlier life of it."""
    real = BrokerHost.on_view

    def on_view(self: BrokerHost, view: Any, version: int) -> None:
        if self.is_up:
            before, self.epoch = self.epoch, 0
            real(self, view, version)
            self.epoch = before

    patch.setattr(BrokerHost, "on_view", on_view)


def count_before_the_sync(patch: Patch) -> None:
    """Where replicas must sync first, they do not."""
    patch.setattr(BrokerHost, "own_end", lambda self: self.log.end_offset)
    patch.setattr(MemoryLog, "synced_end", property(lambda self: self.end_offset))


LACKS = (checkers.TRUSTED_LACKS_RECORDS, checkers.VISIBLE_CHANGED, checkers.ACKNOWLEDGED_LOST)

FIRST_SEEDS = {readmit_an_earlier_life: 98, count_an_earlier_life: 105}

MUTANTS: dict[Callable[[Patch], None], tuple[tuple[str, ...], int]] = {
    truncate_to_the_high_watermark: (LACKS, 40),
    never_look_for_divergence: ((*LACKS, checkers.SAME_NAME_OTHER_RECORD), 40),
    truncate_in_one_step: ((NOT_HEALED,), 120),
    commit_with_too_few: (LACKS, 40),
    shrink_before_the_controller_agrees: (LACKS, 40),
    join_counts_only_when_agreed: (LACKS, 80),
    join_without_catching_up: (LACKS, 40),
    readmit_an_earlier_life: (LACKS, 220),
    count_an_earlier_life: (LACKS, 220),
    let_the_fenced_in: ((*LACKS, checkers.STRANGER_TRUSTED), 80),
    come_back_as_if_nothing_was_lost: ((*LACKS, checkers.SAME_NAME_OTHER_RECORD), 200),
    forget_the_epoch_before: ((checkers.LOSS_INVENTED,), 80),
    trust_the_unclean: (LACKS, 200),
    elect_anybody: (LACKS, 40),
    keep_the_epoch_over_a_change_of_leader: (
        (checkers.TWO_LEADERS, NOT_HEALED, checkers.SAME_NAME_OTHER_RECORD),
        20,
    ),
    take_any_answer: ((checkers.SAME_NAME_OTHER_RECORD,), 20),
    obey_old_metadata: ((checkers.SAME_NAME_OTHER_RECORD,), 80),
    count_before_the_sync: (LACKS, 120),
}
"""Which promises may name a bug, and within how many seeds one must."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_breaks_the_promise_that_names_it(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    names, seeds = MUTANTS[mutant]
    mutant(monkeypatch)
    # The story of some is rare: for them the search begins just before the seed that is known to tell it.
    for seed in range(FIRST_SEEDS.get(mutant, 0), seeds):
        violation = run_seed(seed).violation
        if violation is not None:
            assert violation.startswith(names), f"seed {seed}: {violation}"
            return
    pytest.fail(f"{mutant.__name__} lived through {seeds} seeds")
