"""Bugs that clusters have had, put into whole nodes on purpose: each must be found within a number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.support.patience import with_time

from millpond.base.later import done
from millpond.broker.controller.controller import Controller
from millpond.broker.membership.heartbeats import Heartbeats
from millpond.broker.membership.lifecycle import Lifecycle
from millpond.broker.quorum import lease
from millpond.broker.replication.leader_role import LeaderRole
from millpond.broker.replication.partitions import Partition
from millpond.broker.replication.scrub import Scrub
from millpond.log.partition_log import PartitionLog
from millpond.metadata import leadership
from millpond.quorum.replica import Replica
from millpond.replication.leader import PartitionLeader
from millpond.sim.cluster import checkers
from millpond.sim.cluster.plan import make_plan
from millpond.sim.cluster.shrinker import play
from millpond.sim.world.host_clock import HostClock

Patch = pytest.MonkeyPatch
DEATHS = ("kill of a leader", "power cut", "isolation of a leader", "pause of a leader")
REJECTIONS = (
    "rejecting isolation of a leader",
    "rejecting isolation of the controller",
    "rejecting split",
)
SUSPENSIONS = ("suspension of a leader", "suspension of the controller")
LACKS = (checkers.TRUSTED_LACKS_RECORDS, checkers.VISIBLE_CHANGED, checkers.SAME_NAME_OTHER_BATCH)


def acknowledge_before_the_followers_have_it(patch: Patch) -> None:
    patch.setattr(LeaderRole, "after_commit", lambda _, __, value: done(value))


def show_what_only_the_leader_has(patch: Patch) -> None:
    """Readers see up to the end of the leader's log."""
    patch.setattr(
        Partition,
        "committed_offset",
        property(lambda self: self.log.end_offset if self.is_leader else self._high_watermark),
    )


def never_look_for_divergence(patch: Patch) -> None:
    """KIP-279: lengths are compared, not epochs."""
    patch.setattr(LeaderRole, "divergence", lambda *_: None)


def join_without_catching_up(patch: Patch) -> None:
    def may_join(self: PartitionLeader, broker: int) -> bool:
        return broker not in self.view.isr and self.can_join(broker, self.followers[broker].broker_epoch)

    patch.setattr(PartitionLeader, "_may_join", may_join)


def commit_without_the_in_sync(patch: Patch) -> None:
    """The leader alone says what is committed."""
    patch.setattr(PartitionLeader, "maximal_isr", property(lambda self: {self.me}))


def keep_the_epoch_over_a_change_of_leader(patch: Patch) -> None:
    real = leadership.change

    def change(before: Any, *given: Any, **named: Any) -> Any:
        return replace(real(before, *given, **named), leader_epoch=before.leader_epoch)

    patch.setattr(leadership, "change", change)


def forget_producers_at_a_change_of_leader(patch: Patch) -> None:
    """Redpanda 3039: who leads next does not know what producers have written."""
    real = PartitionLog.append_follower

    def append_follower(self: PartitionLog, batches: memoryview, *, now_ms: int) -> Any:
        appended = real(self, batches, now_ms=now_ms)
        self.producers.entries.clear()
        return appended

    patch.setattr(PartitionLog, "append_follower", append_follower)


def decide_without_a_majority(patch: Patch) -> None:
    """The leader of the quorum commits records that no other voter has."""

    def advance(self: Replica, now_ms: int) -> None:
        self.high_watermark = max(self.high_watermark, self.log.end_offset)
        self._answer_pending(now_ms)

    patch.setattr(Replica, "_advance_high_watermark", advance)


def never_read_again(patch: Patch) -> None:
    """Damage in records that are not read is not repaired."""
    patch.setattr(Scrub, "start", lambda _: None)


def believe_refused_connections(patch: Patch) -> None:
    """A new controller fences a broker that refuses connections at once, whatever lease it may have."""
    patch.setattr(Heartbeats, "_lease_left_ms", lambda *_: 0)


def answer_heartbeats_after_the_fall(patch: Patch) -> None:
    """A controller gives leases whether anybody follows it or not."""
    patch.setattr(Controller, "confirm_leadership", lambda *_: done(None))


def count_no_suspended_time(patch: Patch) -> None:
    patch.setattr(HostClock, "boottime_ms", HostClock.monotonic_ms)
    patch.setattr(lease, "DRIFT_MS_MAX", 1 << 40)


def take_a_refusal_for_death(patch: Patch) -> None:
    """Who is refused by most of the others leads on: they are dead."""
    real = Lifecycle._check_contact

    def look(self: Lifecycle) -> None:
        real(self)
        if not self._controller.others_may_lead:
            self.sessions_missed = 0

    patch.setattr(Lifecycle, "_check_contact", look)


@dataclass(frozen=True)
class Mutant:
    put_in: Callable[[Patch], None]
    faults: tuple[str, ...]
    seeds: int
    named_by: tuple[str, ...] = ()
    """How a finding may begin; any, where clients' results reveal it."""
    nodes: int = 3
    settings: tuple[tuple[str, str], ...] = ()
    """Of every node, beside those of the plan."""


TWO_HISTORIES = (checkers.METADATA_DIFFERS, "QuorumBroken", "AssertionError: another node leads")
"""The metadata have gone two ways: seen by the inspector, by the quorum itself, or by who led in one of them."""

MUTANTS = [
    Mutant(acknowledge_before_the_followers_have_it, DEATHS, 12),
    Mutant(show_what_only_the_leader_has, DEATHS, 12, (*LACKS, checkers.HIGH_WATERMARK_FELL)),
    Mutant(never_look_for_divergence, DEATHS, 20),
    Mutant(join_without_catching_up, DEATHS, 20),
    Mutant(commit_without_the_in_sync, DEATHS, 12),
    Mutant(keep_the_epoch_over_a_change_of_leader, DEATHS, 12),
    Mutant(forget_producers_at_a_change_of_leader, (*DEATHS, "resets"), 30),
    Mutant(never_read_again, ("bit rot",), 12, (checkers.NOT_HEALED,)),
    Mutant(believe_refused_connections, REJECTIONS, 12, (checkers.LEASE_OUTLIVED,)),
    # Of three, any node that still reaches the old controller forms a majority with it.
    Mutant(
        answer_heartbeats_after_the_fall,
        ("rejecting split",),
        30,
        (checkers.LEASE_OUTLIVED,),
        nodes=5,
        settings=(("broker.heartbeat.interval.ms", "600"), ("broker.session.timeout.ms", "3000")),
    ),
    Mutant(count_no_suspended_time, SUSPENSIONS, 12, (checkers.LEASE_OUTLIVED,)),
    Mutant(take_a_refusal_for_death, REJECTIONS, 12, (checkers.NO_DOUBT,)),
    Mutant(decide_without_a_majority, ("isolation", "split", "kill of a leader"), 30, TWO_HISTORIES),
]


@with_time
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.put_in.__name__)
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.put_in(monkeypatch)
    for seed in range(mutant.seeds):
        plan = make_plan(seed, mutant.faults, nodes=mutant.nodes)
        _, outcome = play(seed, replace(plan, node={**plan.node, **dict(mutant.settings)}))
        if outcome.violations:
            assert not mutant.named_by or any(each.startswith(mutant.named_by) for each in outcome.violations), (
                f"seed {seed}: {outcome.violations}"
            )
            return
    pytest.fail(f"{mutant.put_in.__name__} lived through {mutant.seeds} seeds")
