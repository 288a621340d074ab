"""Random lives of a group: whatever clients do, one owner per partition, epochs that never fall, rest in the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.state import STABLE
from support.seeds import seeds

STEPS = 120
REGEXES = ("t.*", "t[01]", "(t|u)[0-9]+", "nothing")


class Simulation:
    """One run: a pond, its clients, and what must hold after every step."""

    def __init__(
        self, seed: int, make_harness: Callable[..., Any], make_consumer: Callable[..., Any], replay: Any
    ) -> None:
        self.random = Random(seed)
        self.harness = make_harness(t0=3, t1=2)
        self.make_consumer = make_consumer
        self.replay = replay
        self.alive: list[Any] = []
        self.crashed: list[Any] = []
        self.away: list[Any] = []
        self.made = 0
        self.group_epoch = 0
        self.member_epochs: dict[str, int] = {}

    # What can happen.

    def join(self) -> None:
        if len(self.alive) >= 6:
            return
        self.made += 1
        member = self.make_consumer(self.harness, f"m{self.made}")
        self.subscribe(member)
        member.assignor = self.random.choice([None, None, "uniform", "range"])
        if self.random.random() < 0.3:
            member.instance_id = f"i{self.made}"
        self.alive.append(member)
        member.beat(lose_reply=self.random.random() < 0.2)

    def subscribe(self, member: Any) -> None:
        if self.random.random() < 0.4:
            member.topics, member.regex = (), self.random.choice(REGEXES)
        else:
            names = sorted({*self.harness.image.topics, "not-there"})
            member.topics = tuple(self.random.sample(names, self.random.randint(0, len(names))))
            member.regex = None

    def change_subscription(self) -> None:
        if self.alive:
            member = self.random.choice(self.alive)
            self.subscribe(member)
            member.must_say_all = True

    def beat(self) -> None:
        if self.alive:
            self.random.choice(self.alive).beat(lose_reply=self.random.random() < 0.15)

    def revoke(self) -> None:
        if self.alive:
            self.random.choice(self.alive).revoke()

    def take(self) -> None:
        if self.alive:
            self.random.choice(self.alive).take()

    def leave(self) -> None:
        if self.alive and self.random.random() < 0.4:
            member = self.random.choice(self.alive)
            self.alive.remove(member)
            self.harness.leave(member.id)

    def crash(self) -> None:
        if self.alive and self.random.random() < 0.3:
            member = self.random.choice(self.alive)
            self.alive.remove(member)
            self.crashed.append(member)

    def restart_static(self) -> None:
        """A static member goes away, and comes back under another id, or does not."""
        static = [member for member in self.alive if member.instance_id and member.epoch > 0]
        if static and self.random.random() < 0.6:
            member = self.random.choice(static)
            member.drop_all()
            self.alive.remove(member)
            self.harness.beat(member.id, -2, instance_id=member.instance_id)
            self.away.append(member)
        elif self.away:
            member = self.away.pop()
            self.made += 1
            member.id = f"m{self.made}"
            self.alive.append(member)
            member.beat()

    def change_topics(self) -> None:
        topics = list(self.harness.image.topics.values())
        choice = self.random.random()
        if choice < 0.1 and len(topics) < 5:
            self.harness.create(f"{self.random.choice('tu')}{self.harness.topics_made}", self.random.randint(1, 4))
        elif choice < 0.2:
            topic = self.random.choice(topics)
            self.harness.grow(topic.name, len(topic.partitions) + 1)
        elif choice < 0.25 and len(topics) > 1:
            self.harness.delete(self.random.choice(topics).name)
        self.harness.topics_changed()

    def wait(self) -> None:
        self.harness.pass_time(self.random.choice([10, 3_000, 20_000]))

    def reload(self) -> None:
        if self.random.random() < 0.3:
            self.harness.reload()

    # What must hold.

    def check(self) -> None:
        group = self.harness.group
        members = group.state.members
        owners: dict[Any, str] = {}
        for member in [*self.alive, *self.crashed]:
            for partition in member.holds if member.id in members else ():
                assert partition not in owners, (partition, owners[partition], member.id)
                owners[partition] = member.id
        assert group.state.epoch >= self.group_epoch
        self.group_epoch = group.state.epoch
        assert group.state.assignment_epoch <= group.state.epoch
        for member_id, member in members.items():
            if member.epoch != -2:
                assert member.epoch >= self.member_epochs.get(member_id, 0), member_id
                assert member.epoch <= group.state.epoch
                self.member_epochs[member_id] = member.epoch
        held = [each for member in members.values() for each in member.current.assigned | member.current.revoking]
        assert len(held) == len(set(held)), "the group itself thinks that two hold one partition"

    def settle(self) -> None:
        for _ in range(12):
            for member in self.alive:
                member.work()
                self.check()
            self.harness.pass_time(5_000)
        state = self.harness.group.state
        assert set(state.members) == {member.id for member in self.alive}
        assert not self.alive or state.name == STABLE
        wanted = set()
        for member in self.alive:
            assert member.error is ErrorCode.NONE
            assert member.owned == state.target(member.id) == state.members[member.id].current.assigned
            for name in state.topics_of(state.members[member.id]):
                topic = self.harness.image.topics.get(name)
                wanted |= {(topic.id, number) for number in range(len(topic.partitions))} if topic else set()
        assert {each for member in self.alive for each in member.owned} == wanted, "a partition starves"

    def check_log(self) -> None:
        """The log alone, whole or cleaned by key, gives the same durable state."""
        again = self.harness.new_group()
        for record in self.harness.log:
            self.replay(again, record)
        assert again.state == self.harness.group.state
        cleaned: dict[bytes, Any] = {}
        for record in self.harness.log:
            cleaned.pop(record.key, None)
            cleaned[record.key] = record
        compact = self.harness.new_group()
        for record in cleaned.values():
            if record.value is not None:
                self.replay(compact, record)
        assert compact.state == self.harness.group.state


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_any_life_keeps_one_owner_and_comes_to_rest(
    seed: int, make_harness: Callable[..., Any], make_consumer: Callable[..., Any], replay: Any
) -> None:
    simulation = Simulation(seed, make_harness, make_consumer, replay)
    happenings = [
        simulation.join,
        simulation.beat,
        simulation.beat,
        simulation.beat,
        simulation.revoke,
        simulation.revoke,
        simulation.take,
        simulation.take,
    ]
    happenings += [
        simulation.leave,
        simulation.crash,
        simulation.restart_static,
        simulation.change_topics,
        simulation.wait,
        simulation.reload,
    ]
    happenings += [simulation.change_subscription]
    for _ in range(STEPS):
        simulation.random.choice(happenings)()
        simulation.check()
    simulation.check_log()
    simulation.settle()
    simulation.check_log()


def test_every_prefix_of_the_log_gives_the_state_of_that_moment(
    make_harness: Callable[..., Any], make_consumer: Callable[..., Any], replay: Any
) -> None:
    simulation = Simulation(7, make_harness, make_consumer, replay)
    moments = [(0, simulation.harness.group.state.copy())]
    happenings = [
        simulation.join,
        simulation.beat,
        simulation.beat,
        simulation.revoke,
        simulation.take,
        simulation.leave,
        simulation.restart_static,
    ]
    for _ in range(STEPS):
        simulation.random.choice([*happenings, simulation.change_topics, simulation.wait])()
        if len(simulation.harness.log) > moments[-1][0]:
            moments.append((len(simulation.harness.log), simulation.harness.group.state.copy()))
    assert len(moments) > 20
    again = simulation.harness.new_group()
    position = 0
    for length, state in moments:
        for record in simulation.harness.log[position:length]:
            replay(again, record)
        position = length
        assert again.state == state


class MixedSimulation(Simulation):
    """Members of both protocols in one group that stays one of the new."""

    def __init__(self, seed: int, make_harness: Any, make_consumer: Any, make_classic: Any, replay: Any) -> None:
        super().__init__(seed, make_harness, make_consumer, replay)
        self.harness = make_harness(ConsumerGroupSettings(migration_policy="upgrade"), t0=3, t1=2)
        self.make_classic = make_classic
        self.classics: list[Any] = []

    def join_classic(self) -> None:
        if len(self.classics) < 4:
            classic = self.make_classic(self.harness, *self.random.sample(["t0", "t1"], self.random.randint(1, 2)))
            classic.eager = self.random.random() < 0.5
            classic.is_told_to_join = True
            if classic.join().error_code == 0:
                self.classics.append(classic)

    def work_classic(self) -> None:
        if self.classics:
            self.step_classic(self.random.choice(self.classics))

    def step_classic(self, classic: Any) -> None:
        """One request of a classic consumer: a heartbeat, or as far as joining and fetching its share."""
        if not classic.is_told_to_join:
            code = classic.beat()
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                classic.owned = frozenset()
                classic.id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else classic.id
            classic.is_told_to_join = code is not ErrorCode.NONE
            return
        if classic.eager:
            classic.owned = frozenset()
        before = classic.owned
        if classic.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            classic.id, classic.owned = "", frozenset()
            return
        self.check()
        code = ErrorCode(classic.sync().error_code)
        # A cooperative one that had to give something up says so by joining again.
        classic.is_told_to_join = code is not ErrorCode.NONE or not before <= classic.owned

    def leave_classic(self) -> None:
        if self.classics and self.random.random() < 0.3:
            classic = self.classics.pop(self.random.randrange(len(self.classics)))
            classic.leave()

    def check(self) -> None:
        super().check()
        owners: dict[Any, str] = {}
        everybody = [(each.id, each.holds) for each in [*self.alive, *self.crashed]]
        everybody += [(each.id, each.owned) for each in self.classics]
        for member_id, held in everybody:
            for partition in held if member_id in self.harness.group.state.members else ():
                assert partition not in owners, (partition, owners[partition], member_id)
                owners[partition] = member_id

    def settle_all(self) -> None:
        for _ in range(16):
            for member in self.alive:
                member.work()
                self.check()
            for classic in self.classics:
                for _ in range(3):
                    self.step_classic(classic)
                    self.check()
            self.harness.pass_time(4_000)
        state = self.harness.group.state
        assert set(state.members) == {each.id for each in [*self.alive, *self.classics]}
        assert not state.members or state.name == STABLE
        for each in [*self.alive, *self.classics]:
            assert each.owned == state.target(each.id)


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_both_protocols_in_one_group(
    seed: int, make_harness: Any, make_consumer: Any, make_classic: Any, replay: Any
) -> None:
    simulation = MixedSimulation(seed, make_harness, make_consumer, make_classic, replay)
    happenings = [
        simulation.join,
        simulation.beat,
        simulation.beat,
        simulation.revoke,
        simulation.take,
        simulation.leave,
        simulation.wait,
        simulation.reload,
    ]
    happenings += [
        simulation.join_classic,
        simulation.work_classic,
        simulation.work_classic,
        simulation.work_classic,
        simulation.leave_classic,
    ]
    happenings += [simulation.crash, simulation.restart_static]
    for _ in range(STEPS):
        simulation.random.choice(happenings)()
        simulation.check()
    simulation.settle_all()
    simulation.check_log()
