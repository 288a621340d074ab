"""Simulated members of both protocols share a topic, and take over partitions from each other."""

from __future__ import annotations

from random import Random

import pytest

from millpond.sim.clients.group_member import ClassicMember, ConsumerMember, GroupMember, GroupTopic, MemberTimes
from millpond.sim.clients.group_reader import ReadJob
from millpond.sim.coordination.worker_group import JobMember
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Promise


class Group:
    def __init__(self, pond, kind: type[GroupMember]) -> None:
        self.pond = pond
        self.kind = kind
        self.history = CoordinationHistory()
        self.topic = GroupTopic("t", pond.partitions[0].topic_id, 2)
        producer = pond.producer()
        for partition in pond.partitions:
            for _ in range(5):
                producer.produce(partition, pond.contents(2), Promise.SURVIVES)
        assert pond.sim.run_until(producer.is_idle)

    def member(self, name: str) -> JobMember:
        job = ReadJob(
            self.pond.sim.clock,
            self.pond.client(f"{name} work"),
            self.history,
            self.topic,
            Random(name),
            pace_ms=20,
        )
        times = MemberTimes(8_000, 8_000)
        client = self.pond.client(name)
        member = JobMember(self.kind, self.pond.sim.clock, client, self.history, self.topic, job, times)
        member.start()
        return member

    def owned(self) -> dict[str, list[int]]:
        return {name: sorted(holding.partitions) for name, holding in self.history.holdings.items()}

    def until(self, **owned: list[int]) -> bool:
        return self.pond.sim.run_until(lambda: self.owned() == owned, within_ms=60_000)


@pytest.fixture(params=[ClassicMember, ConsumerMember])
def group(pond, request) -> Group:
    return Group(pond, request.param)


def test_a_member_processes_and_commits_everything(group: Group) -> None:
    group.member("one")
    assert group.pond.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.processed == {(partition, offset): 1 for partition in (0, 1) for offset in range(10)}
    assert group.history.violations == []


def test_members_share_partitions_and_take_over_from_a_leaver(group: Group) -> None:
    one, two = group.member("one"), group.member("two")
    assert group.pond.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.leave()
    assert group.until(two=[0, 1])
    assert one.is_over
    two.leave()
    assert group.until()
    assert group.history.violations == []


def test_a_crashed_member_loses_its_partitions_after_its_session(group: Group) -> None:
    one, _ = group.member("one"), group.member("two")
    assert group.pond.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.crash()
    crashed_ms = group.pond.sim.clock.now_ms
    assert group.pond.sim.run_until(lambda: group.owned().get("two") == [0, 1], within_ms=100_000)
    assert group.pond.sim.clock.now_ms > crashed_ms + 5_000
    assert group.history.violations == []


def test_members_survive_the_restart_of_the_node(group: Group) -> None:
    group.member("one")
    assert group.until(one=[0, 1])
    group.pond.node.kill()
    assert group.pond.node.start()
    assert group.pond.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.violations == []
