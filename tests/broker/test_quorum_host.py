"""Several nodes as one quorum in the simulated world: they elect a leader, commit, fail over and return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.controller.controller import Controller
from millpond.metadata.decision import Decision
from millpond.metadata.image import ALL_BROKERS
from millpond.metadata.records import ConfigRecord
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld

NAMES = ("a", "b", "c")
NODES = ",".join(f"{number}@{name}:9092" for number, name in enumerate(NAMES, 1))


class Quorum:
    """Three nodes, and the requests to their leader."""

    def __init__(self, seed: int = 0) -> None:
        self.sim = SimWorld(seed)
        self.nodes = [
            SimNode(self.sim, name, {"node.id": str(number), "cluster.nodes": NODES})
            for number, name in enumerate(NAMES, 1)
        ]
        self.written = 0

    def start(self) -> Quorum:
        for node in self.nodes:
            assert node.start(), node.journal_lines
        self.leader()
        return self

    def controllers(self) -> list[Controller]:
        return [node.broker.controller for node in self.nodes if node.is_up]

    def active(self) -> list[SimNode]:
        return [node for node in self.nodes if node.is_up and node.broker.controller.is_active]

    def leader(self, within_ms: int = 5_000) -> SimNode:
        """The active controller, once there is one."""
        self.until(lambda: bool(self.active()), within_ms)
        return self.active()[0]

    def until(self, condition: Callable[[], bool], within_ms: int = 5_000) -> None:
        assert self.sim.run_until(condition, within_ms=within_ms), [
            (each.node_id, each.is_active, each.leader_id, each.leader_epoch, each.applied_offset)
            for each in self.controllers()
        ]

    def submit(self, node: SimNode) -> list[Any]:
        """Commit a setting without effect; returns the responses so far."""
        self.written += 1
        record = ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, "test", str(self.written))
        answers: list[Any] = []
        answered = node.broker.controller.submit(lambda _: Decision((record,), self.written))
        answered.then(answers.append, answers.append)
        return answers

    def write(self, within_ms: int = 3_000) -> None:
        """Commit a value on the leader, and wait for it on every running node."""
        answers = self.submit(self.leader())
        self.until(lambda: answers == [self.written], within_ms)
        self.until(self.has_settled, within_ms)

    def value(self, controller: Controller) -> str | None:
        return controller.image.config_of(ALL_BROKERS).get("test")

    def has_settled(self) -> bool:
        """Whether all running nodes have the last value and the same image."""
        images = [each.image for each in self.controllers()]
        return all(self.value(each) == str(self.written) for each in self.controllers()) and all(
            image == images[0] for image in images
        )


@pytest.fixture
def quorum() -> Quorum:
    return Quorum().start()


def test_three_nodes_found_one_cluster(quorum: Quorum) -> None:
    quorum.write()
    (leader,) = quorum.active()
    for controller in quorum.controllers():
        assert controller.leader_id == leader.broker.node_id
        assert controller.leader_epoch == leader.broker.controller.leader_epoch
        assert controller.image.cluster_id is not None


def test_only_the_leader_decides(quorum: Quorum) -> None:
    (follower, _) = [node for node in quorum.nodes if not node.broker.controller.is_active]
    (refused,) = quorum.submit(follower)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.NOT_CONTROLLER


def test_nothing_is_answered_without_a_majority(quorum: Quorum) -> None:
    quorum.write()
    leader = quorum.leader()
    others = [node for node in quorum.nodes if node is not leader]
    for node in others:
        node.crash()
    answers = quorum.submit(leader)
    quorum.sim.run_for(1_000)
    assert answers == []
    quorum.sim.run_for(3_000)
    assert not leader.broker.controller.is_active, "it resigns without followers"
    assert answers[0].code is ErrorCode.NOT_CONTROLLER
    for node in others:
        node.start()
    quorum.write()


def test_a_killed_leader_is_replaced_within_a_second(quorum: Quorum) -> None:
    quorum.write()
    for _ in range(5):
        leader = quorum.leader()
        epoch = leader.broker.controller.leader_epoch
        began_ms = quorum.sim.clock.now_ms
        leader.kill()
        assert quorum.leader(within_ms=1_000).broker.controller.leader_epoch > epoch
        quorum.write(within_ms=1_000)
        assert quorum.sim.clock.now_ms - began_ms < 1_000
        leader.start()
        quorum.until(quorum.has_settled)


def test_a_leader_whose_power_goes_is_missed_and_replaced(quorum: Quorum) -> None:
    quorum.write()
    leader = quorum.leader()
    leader.crash()
    assert quorum.leader(within_ms=3_000) is not leader
    quorum.write()
    leader.start()
    quorum.until(quorum.has_settled)


def test_a_paused_leader_finds_that_it_leads_no_more(quorum: Quorum) -> None:
    quorum.write()
    leader = quorum.leader()
    quorum.sim.pause(leader.name)
    quorum.until(lambda: len(quorum.active()) == 2, within_ms=3_000)
    answers = quorum.submit(leader)
    quorum.sim.resume(leader.name)
    quorum.until(lambda: len(quorum.active()) == 1)
    assert answers[0].code is ErrorCode.NOT_CONTROLLER
    quorum.write()


def test_what_was_answered_outlives_a_power_cut_of_all(quorum: Quorum) -> None:
    for _ in range(3):
        quorum.write()
        for node in quorum.nodes:
            node.crash()
        for node in quorum.nodes:
            assert node.start(), node.journal_lines
        quorum.leader()
        quorum.until(quorum.has_settled)


def test_what_a_lost_leader_wrote_alone_is_dropped(quorum: Quorum) -> None:
    """It returns with records that no other node has: they are truncated and replaced by the others'."""
    quorum.write()
    leader = quorum.leader()
    for node in quorum.nodes:
        if node is not leader:
            quorum.sim.network.partition(leader.name, node.name)
    answers = quorum.submit(leader)
    lost = quorum.written
    quorum.until(lambda: any(node is not leader for node in quorum.active()))
    quorum.until(lambda: bool(answers))
    assert answers[0].code is ErrorCode.NOT_CONTROLLER
    other = next(node for node in quorum.active() if node is not leader)
    answers = quorum.submit(other)
    quorum.until(lambda: answers == [quorum.written])
    quorum.sim.network.heal()
    quorum.until(quorum.has_settled, within_ms=10_000)
    assert quorum.written == lost + 1
    logs = [each.broker.controller.log for each in (leader, other)]
    # At any moment the leader may have records that the others lack, for example that this node is back.
    quorum.until(lambda: logs[0].end_offset == logs[1].end_offset)
    assert logs[0].read_batches(0, 1 << 24) == logs[1].read_batches(0, 1 << 24)


def test_an_ordered_stop_hands_over_at_once(quorum: Quorum) -> None:
    quorum.write()
    leader = quorum.leader()
    leader.broker.controller.resign()
    quorum.until(lambda: any(node is not leader for node in quorum.active()), within_ms=300)
    (successor,) = quorum.active()
    successor.crash()
    quorum.sim.run_for(10_000)
    assert leader not in quorum.active(), "who is about to go is not elected again"
    assert len(quorum.active()) == 1, "and still votes"


@pytest.mark.parametrize("seed", range(12))
def test_nodes_come_and_go_and_agree(seed: int) -> None:
    quorum = Quorum(seed).start()
    for turn in range(6):
        quorum.write(within_ms=10_000)
        node = quorum.nodes[(seed + turn) % 3]
        (node.crash if (seed + turn) % 2 else node.kill)()
        quorum.sim.run_for(37 * seed)
        quorum.write(within_ms=10_000)
        assert node.start(), node.journal_lines
    quorum.write(within_ms=10_000)


def test_a_large_decision_is_applied_in_many_turns_and_seen_at_once(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.broker.controller.image_applier.TURN_MS", -1)
    monkeypatch.setattr("millpond.broker.quorum.committed_batches.CHECK_EVERY", 1)
    quorum.write()
    names = [f"name-{number}" for number in range(20)]
    records = tuple(ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, name, "set") for name in names)
    seen: list[int] = []

    def look() -> None:
        configs = [controller.image.config_of(ALL_BROKERS) for controller in quorum.controllers()]
        seen.extend(sum(name in config for name in names) for config in configs)
        quorum.sim.clock.call_later(1, look)

    look()
    quorum.leader().broker.controller.submit(lambda _: Decision(records, None)).then(lambda _: None)
    quorum.sim.run_for(200)
    assert set(seen) == {0, 20}, "all or nothing of it"
    assert seen[-3:] == [20, 20, 20]


# Wiped disks.


def test_a_wiped_node_comes_back_as_a_new_voter_and_counts_again_once_it_has_caught_up(quorum: Quorum) -> None:
    quorum.write()
    wiped = next(node for node in quorum.nodes if not node.broker.controller.is_active)
    wiped.kill()
    quorum.sim.wipe(wiped.name)
    assert wiped.start(), wiped.journal_lines
    assert wiped.broker.controller.host.is_new
    quorum.until(lambda: not wiped.broker.controller.host.is_new)
    quorum.until(quorum.has_settled)
    leader = quorum.leader()
    leader.crash()
    quorum.write(within_ms=10_000)


def test_a_wiped_node_and_another_elect_no_leader(quorum: Quorum) -> None:
    """The wiped node may have had records that the other lacks: only the third one knows."""
    quorum.write()
    leader = quorum.leader()
    wiped, other = [node for node in quorum.nodes if node is not leader]
    leader.crash()
    wiped.crash()
    quorum.sim.wipe(wiped.name)
    assert wiped.start(), wiped.journal_lines
    quorum.sim.run_for(20_000)
    assert quorum.active() == []
    assert leader.start(), leader.journal_lines
    quorum.write(within_ms=10_000)
    assert other.broker.controller.image == wiped.broker.controller.image


def test_two_wiped_nodes_do_not_found_a_cluster_of_their_own(quorum: Quorum) -> None:
    quorum.write()
    for node in quorum.nodes:
        node.crash()
    for node in quorum.nodes[:2]:
        quorum.sim.wipe(node.name)
        assert node.start(), node.journal_lines
    quorum.sim.run_for(20_000)
    assert quorum.active() == []
    assert quorum.nodes[2].start()
    quorum.sim.run_for(20_000)
    assert quorum.active() == [], "a majority of what was promised is lost"


@pytest.mark.parametrize("cut", range(3, 60, 4))
def test_a_power_cut_in_the_founding_leaves_a_cluster_that_can_be_founded(cut: int) -> None:
    quorum = Quorum(cut)
    for node in quorum.nodes:
        node.sim.host(node.name).disk.crash_at_operation(cut if node is quorum.nodes[cut % 3] else None)
        node.start()
    quorum.sim.run_for(3_000)
    for node in quorum.nodes:
        if not node.is_up:
            assert node.start(), node.journal_lines
    quorum.write(within_ms=10_000)


def test_a_leader_that_cannot_read_its_log_lets_another_lead() -> None:
    quorum = Quorum().start()
    quorum.write()
    leader = quorum.leader()
    leader.disk.fail_reads("__cluster_metadata", times=None)
    quorum.submit(leader)
    quorum.until(lambda: any(node is not leader for node in quorum.active()), 10_000)
    leader.disk.heal()
    # If the fault hits while the node truncates its log, it exits.
    quorum.sim.run_for(1_000)
    assert leader.is_up or leader.start()
    quorum.write(10_000)


def test_a_node_whose_metadata_log_fails_ends_and_the_others_go_on() -> None:
    quorum = Quorum().start()
    quorum.write()
    leader = quorum.leader()
    leader.disk.fail_syncs("__cluster_metadata")
    quorum.submit(leader)
    quorum.until(lambda: not leader.is_up)
    assert "the metadata log is offline" in leader.journal_lines[-1]
    quorum.write(10_000)
    assert leader.start()
    quorum.write(10_000)


def confirm(leader: SimNode) -> list[object]:
    """Request a proof that the node leads now, and return the outcome."""
    controller, answers = leader.broker.controller, []
    controller.confirm_leadership(controller.lease_clock.now_ms()).then(answers.append, answers.append)
    return answers


def test_a_leader_that_is_followed_is_confirmed_at_once(quorum: Quorum) -> None:
    quorum.write()
    quorum.sim.run_for(1_234)
    for _ in range(20):
        answers, began_ms = confirm(quorum.leader()), quorum.sim.clock.now_ms
        assert not answers, "what was proved before is not enough"
        quorum.until(lambda answers=answers: answers == [None])  # type: ignore[misc]
        assert quorum.sim.clock.now_ms - began_ms < 60, "voters do not wait for news, but for a round trip"
        quorum.sim.run_for(77)


def test_a_leader_without_a_majority_is_not_confirmed(quorum: Quorum) -> None:
    quorum.write()
    leader = quorum.leader()
    others = [node for node in quorum.nodes if node is not leader]
    quorum.sim.network.partition(leader.name, others[0].name)
    quorum.sim.run_for(500)
    followed = confirm(leader)
    quorum.until(lambda: followed == [None], within_ms=500)
    quorum.sim.network.partition(leader.name, others[1].name)
    answers = confirm(leader)
    quorum.until(lambda: bool(answers))
    assert answers[0].code is ErrorCode.NOT_CONTROLLER  # type: ignore[attr-defined]
    assert not leader.broker.controller.is_active
