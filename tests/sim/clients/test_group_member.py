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
    def __init__(self, one_node, kind: type[GroupMember]) -> None:
        self.one_node = one_node
        self.kind = kind
        self.history = CoordinationHistory()
        self.topic = GroupTopic("t", one_node.partitions[0].topic_id, 2)
        producer = one_node.producer()
        for partition in one_node.partitions:
            for _ in range(5):
                producer.produce(partition, one_node.contents(2), Promise.SURVIVES)
        assert one_node.sim.run_until(producer.is_idle)

    def member(self, name: str) -> JobMember:
        job = ReadJob(
            self.one_node.sim.clock,
            self.one_node.client(f"{name} work"),
            self.history,
            self.topic,
            Random(name),
            pace_ms=20,
        )
        times = MemberTimes(8_000, 8_000)
        client = self.one_node.client(name)
        member = JobMember(self.kind, self.one_node.sim.clock, client, self.history, self.topic, job, times)
        member.start()
        return member

    def owned(self) -> dict[str, list[int]]:
        return {name: sorted(holding.partitions) for name, holding in self.history.holdings.items()}

    def until(self, **owned: list[int]) -> bool:
        return self.one_node.sim.run_until(lambda: self.owned() == owned, within_ms=60_000)


@pytest.fixture(params=[ClassicMember, ConsumerMember])
def group(one_node, request) -> Group:
    return Group(one_node, request.param)


def test_a_member_processes_and_commits_everything(group: Group) -> None:
    group.member("one")
    assert group.one_node.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.processed == {(partition, offset): 1 for partition in (0, 1) for offset in range(10)}
    assert group.history.violations == []


def test_members_share_partitions_and_take_over_from_a_leaver(group: Group) -> None:
    one, two = group.member("one"), group.member("two")
    assert group.one_node.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.leave()
    assert group.until(two=[0, 1])
    assert one.is_over
    two.leave()
    assert group.until()
    assert group.history.violations == []


def test_a_crashed_member_loses_its_partitions_after_its_session(group: Group) -> None:
    one, _ = group.member("one"), group.member("two")
    assert group.one_node.sim.run_until(lambda: sorted(map(len, group.owned().values())) == [1, 1])
    one.crash()
    crashed_ms = group.one_node.sim.clock.now_ms
    assert group.one_node.sim.run_until(lambda: group.owned().get("two") == [0, 1], within_ms=100_000)
    assert group.one_node.sim.clock.now_ms > crashed_ms + 5_000
    assert group.history.violations == []


def test_members_survive_the_restart_of_the_node(group: Group) -> None:
    group.member("one")
    assert group.until(one=[0, 1])
    group.one_node.node.kill()
    assert group.one_node.node.start()
    assert group.one_node.sim.run_until(lambda: group.history.reached == {0: 10, 1: 10})
    assert group.history.violations == []
