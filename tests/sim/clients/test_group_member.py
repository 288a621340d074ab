"""Simulated members share out a topic, in both protocols, and pass on what they had."""

from __future__ import annotations

from random import Random

import pytest

from millpond.sim.clients.group_member import ClassicMember, ConsumerMember, GroupTopic, Member, MemberTimes
from millpond.sim.clients.group_reader import ReadJob
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Promise


class Group:
    def __init__(self, pond, kind: type[Member]) -> None:
        self.pond = pond
        self.kind = kind
        self.history = CoordinationHistory()
        self.topic = GroupTopic("t", pond.partitions[0].topic_id, 2)
        producer = pond.producer()
        for partition in pond.partitions:
            for _ in range(5):
                producer.produce(partition, pond.contents(2), Promise.SURVIVES)
        assert pond.sim.run_until(producer.is_idle)

    def member(self, name: str) -> Member:
        job = ReadJob(
            self.pond.sim.clock,
            self.pond.client(f"{name} work"),
            self.history,
            self.topic,
            Random(name),
            pace_ms=20,
        )
        member = self.kind(
            self.pond.sim.clock, self.pond.client(name), self.history, "g", self.topic, job, MemberTimes(8_000, 8_000)
        )
        member.start()
        return member

    def owned(self) -> dict[str, list[int]]:
        return {name: sorted(holding.partitions) for name, holding in self.history.holdings.items()}

    def until(self, **owned: list[int]) -> bool:
        return self.pond.sim.run_until(lambda: self.owned() == owned, within_ms=60_000)


@pytest.fixture(params=[ClassicMember, ConsumerMember])
def group(pond, request) -> Group:
    return Group(pond, request.param)


def test_all_is_processed_and_committed(group: Group) -> None:
    group.member("one")
    assert group.pond.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.processed == {(partition, offset): 1 for partition in (0, 1) for offset in range(10)}
    assert group.history.violations == []


def test_members_share_and_pass_on(group: Group) -> None:
    one, two = group.member("one"), group.member("two")
    assert group.pond.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.leave()
    assert group.until(two=[0, 1])
    assert one.is_over
    two.leave()
    assert group.until()
    assert group.history.violations == []


def test_who_crashes_is_missed_after_its_session(group: Group) -> None:
    one, _ = group.member("one"), group.member("two")
    assert group.pond.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.crash()
    crashed_ms = group.pond.sim.clock.now_ms
    assert group.pond.sim.run_until(lambda: group.owned().get("two") == [0, 1], within_ms=100_000)
    assert group.pond.sim.clock.now_ms > crashed_ms + 5_000
    assert group.history.violations == []


def test_a_killed_node_is_lived_through(group: Group) -> None:
    group.member("one")
    assert group.until(one=[0, 1])
    group.pond.node.kill()
    assert group.pond.node.start()
    assert group.pond.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.violations == []
