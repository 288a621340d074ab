"""A live group changes its protocol and back, with the shard of all groups around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.consumer import migration
from millpond.coordinators.groups.consumer.embedded import assignment_bytes, partitions_of
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.shard import Effects, Request
from millpond.wire import messages as m

JOIN = m.JoinGroupRequest
SYNC = m.SyncGroupRequest


@dataclass
class Town:
    """A shard, its log, and replies by token."""

    pond: Any
    settings: GroupSettings
    now_ms: int = 1_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    replies: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shard = GroupShard(self.pond.image, self.settings, self.pond.group.entropy)
        self.shard.on_loaded(self.now_ms)

    def take_in(self, effects: Effects) -> None:
        for record in effects.records:
            self.shard.replay(len(self.log), record.key, record.value)
            self.log.append((record.key, record.value))
        self.replies.update(dict(effects.replies))

    def send(self, token: str, body: m.Message, version: int) -> Any:
        """The reply; None while it is parked."""
        self.replies.pop(token, None)
        self.take_in(self.shard.step(Request(body, version, token, "c", "/h"), self.now_ms))
        return self.replies.get(token)

    def pass_time(self, duration_ms: int) -> None:
        end = self.now_ms + duration_ms
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.take_in(self.shard.on_time(self.now_ms))
        self.now_ms = end

    def reloaded(self) -> GroupShard:
        again = GroupShard(self.pond.image, self.settings, self.pond.group.entropy)
        for offset, (key, value) in enumerate(self.log):
            again.replay(offset, key, value)
        return again

    @property
    def group(self) -> Any:
        return self.shard.groups["g"]

    # Requests in short.

    def join(self, member_id: str, token: str, *, instance_id: str | None = None, kind: str = "consumer") -> Any:
        subscription = b"\0\0" + m.ConsumerProtocolSubscription(topics=["a"]).encode(0)
        return self.send(
            token,
            JOIN(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=kind,
                protocols=[JOIN.JoinGroupRequestProtocol(name="range", metadata=subscription)],
            ),
            5,
        )

    def sync(self, member_id: str, generation: int, token: str, assignments: dict[str, bytes] | None = None) -> Any:
        shares = [
            SYNC.SyncGroupRequestAssignment(member_id=name, assignment=share)
            for name, share in (assignments or {}).items()
        ]
        body = SYNC(group_id="g", generation_id=generation, member_id=member_id, assignments=shares)
        return self.send(token, body, 3)

    def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        body = m.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
        return ErrorCode(self.send("hb", body, 4).error_code)

    def new_beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        body = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
        return self.send("new", body, 1)

    def new_join(self, member_id: str, **fields: Any) -> Any:
        return self.new_beat(
            member_id, 0, rebalance_timeout_ms=60_000, subscribed_topic_names=["a"], topic_partitions=[], **fields
        )


@pytest.fixture
def make_town(make_pond: Callable[..., Any]) -> Callable[..., Town]:
    def make(**consumer: Any) -> Town:
        settings = GroupSettings(initial_rebalance_delay_ms=0, consumer=ConsumerGroupSettings(**consumer))
        return Town(make_pond(a=4), settings)

    return make


def classic_pair(town: Town, **fields: Any) -> tuple[str, str]:
    """Two classic members that have shared out: two partitions each."""
    first = town.join("", "t1", **fields).member_id
    town.join(first, "j1", **fields)
    town.pass_time(1)
    second = town.join("", "t2", **fields).member_id
    town.join(second, "j2", **fields)
    town.join(first, "j1", **fields)
    town.pass_time(1)
    assert (town.replies["j1"].generation_id, town.replies["j2"].generation_id) == (2, 2)
    like, parts = b"\0\0", town.pond.parts
    shares = {
        first: assignment_bytes(parts(a=[0, 1]), like, town.pond.image),
        second: assignment_bytes(parts(a=[2, 3]), like, town.pond.image),
    }
    town.sync(second, 2, "s2")
    town.sync(first, 2, "s1", shares)
    return first, second


def test_an_upgrade_moves_nothing_by_itself(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    response = town.new_join("new")
    assert (response.error_code, response.member_epoch) == (0, 3)
    assert response.assignment.topic_partitions == [], "all is still in use"
    assert isinstance(town.group, ConsumerGroup)
    assert town.group.state.members[first].current.assigned == town.pond.parts(a=[0, 1])
    assert town.group.state.members[second].current.assigned == town.pond.parts(a=[2, 3])
    again = town.reloaded().groups["g"]
    assert isinstance(again, ConsumerGroup)
    assert again.state == town.group.state


def test_classic_members_go_on_in_the_upgraded_group(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    town.new_join("new")
    for member_id in (first, second):
        assert town.heartbeat(member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
        joined = town.join(member_id, "j")
        assert (joined.error_code, joined.generation_id, joined.leader) == (0, 3, "")
        synced = town.sync(member_id, 3, "s")
        assert synced.error_code == 0
        assert partitions_of(synced.assignment, town.pond.image) == town.group.state.target(member_id)
        assert town.heartbeat(member_id, 3) is ErrorCode.NONE
    assert len(town.new_beat("new", 3).assignment.topic_partitions[0].partitions) == 1
    assert town.group.state_name == "Stable"


def test_a_downgrade_when_the_last_new_member_leaves(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    town.new_join("new")
    for member_id in (first, second):
        town.join(member_id, "j")
        town.sync(member_id, 3, "s")
    assert town.new_beat("new", -1).error_code == 0
    group = town.group
    assert isinstance(group, ClassicGroup)
    assert group.state_name == "PreparingRebalance"
    # The generation that they know: they may still commit in it before they join again.
    assert (group.generation, set(group.members)) == (3, {first, second})
    assert isinstance(town.reloaded().groups["g"], ClassicGroup)
    assert town.heartbeat(first, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    town.join(first, "j1")
    town.join(second, "j2")
    town.pass_time(1)
    joined = [town.replies[token] for token in ("j1", "j2")]
    assert [each.error_code for each in joined] == [0, 0]
    assert {each.generation_id for each in joined} == {4}
    assert sorted(len(each.members) for each in joined) == [0, 2], "one of them shares out again"


def test_a_downgrade_just_before_the_coordinator_fails_is_followed_by_its_rebalance(
    make_town: Callable[..., Town],
) -> None:
    """Found by a seed of the simulator: the next coordinator took a share of nothing for all there is to have."""
    town = make_town()
    first, second = classic_pair(town)
    town.new_join("new")
    for member_id in (first, second):
        town.join(member_id, "j")
        town.sync(member_id, 3, "s")
    town.new_beat("new", -1)
    town.shard = town.reloaded()
    town.take_in(town.shard.on_loaded(town.now_ms))
    assert town.heartbeat(first, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    town.join(first, "j1")
    town.join(second, "j2")
    assert sorted(len(town.replies[token].members) for token in ("j1", "j2")) == [0, 2]


def test_a_downgrade_when_the_last_new_member_falls_silent(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    town.new_join("new")
    for member_id in (first, second):
        town.join(member_id, "j")
        town.sync(member_id, 3, "s")
    for _ in range(5):
        town.pass_time(9_000)
        for member_id in (first, second):
            town.heartbeat(member_id, 3)
    assert isinstance(town.group, ClassicGroup)


def test_a_downgrade_remembers_what_members_still_hold(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    town.new_join("n1")
    town.new_join("n2")
    held = {name: town.group.state.members[name].current.assigned for name in (first, second)}
    subscription = m.ConsumerProtocolSubscription
    owned = [subscription.TopicPartition(topic="a", partitions=sorted(each.partition for each in held[first]))]
    cooperative = b"\0\1" + subscription(topics=["a"], owned_partitions=owned).encode(1)
    town.send(
        "j",
        JOIN(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=first,
            protocol_type="consumer",
            protocols=[JOIN.JoinGroupRequestProtocol(name="range", metadata=cooperative)],
        ),
        5,
    )
    assert town.group.state.members[first].current.revoking
    town.new_beat("n1", -1)
    town.new_beat("n2", -1)
    for name in (first, second):
        assert partitions_of(town.group.members[name].assignment, town.pond.image) == held[name]


def test_sessions_of_classic_members_go_on_after_an_upgrade(make_town: Callable[..., Town]) -> None:
    town = make_town()
    classic_pair(town)
    town.new_join("new")
    town.pass_time(10_000)
    assert set(town.group.state.members) == {"new"}


def test_a_static_member_may_go_back(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, _ = classic_pair(town)
    town.new_join("new", instance_id="i")
    response = town.join("", "back", instance_id="i")
    assert response.error_code == 0
    assert isinstance(town.group, ClassicGroup)
    assert len(town.group.members) == 3
    assert town.heartbeat(first, 3) is not ErrorCode.UNKNOWN_MEMBER_ID


def test_those_who_wait_in_the_classic_group_hear_of_it(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, second = classic_pair(town)
    assert town.join(first, "waits") is None
    town.new_join("new")
    assert town.replies["waits"].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert town.join(second, "j").generation_id == 3


def test_an_empty_classic_group_becomes_what_its_next_member_wants(make_town: Callable[..., Town]) -> None:
    town = make_town(migration_policy="disabled")
    first, second = classic_pair(town)
    for member_id in (first, second):
        identity = m.LeaveGroupRequest.MemberIdentity(member_id=member_id)
        town.send("l", m.LeaveGroupRequest(group_id="g", members=[identity]), 5)
    assert town.group.is_empty
    assert town.new_join("new").error_code == 0
    assert isinstance(town.group, ConsumerGroup)
    town.new_beat("new", -1)
    assert isinstance(town.group, ConsumerGroup)


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"migration_policy": "disabled"}, "consumer", "migration.policy"),
        ({"migration_policy": "downgrade"}, "consumer", "migration.policy"),
        ({"max_size": 1}, "consumer", "more than 1"),
        ({}, "connect", "do not share out"),
    ],
)
def test_groups_that_stay_classic(
    make_town: Callable[..., Town], settings: dict[str, Any], kind: str, reason: str
) -> None:
    town = make_town(**settings)
    classic_pair(town, kind=kind)
    before = len(town.log)
    response = town.new_join("new")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in response.error_message
    assert isinstance(town.group, ClassicGroup)
    assert len(town.log) == before


@pytest.mark.parametrize("settings", [{"migration_policy": "upgrade"}, {"classic_max_size": 1}])
def test_groups_that_do_not_turn_back(make_town: Callable[..., Town], settings: dict[str, Any]) -> None:
    town = make_town(**settings)
    first, second = classic_pair(town)
    town.new_join("new")
    town.new_beat("new", -1)
    assert isinstance(town.group, ConsumerGroup)
    assert set(town.group.state.members) == {first, second}
    assert town.join(first, "j").generation_id == 4, "they go on without it"


def test_a_group_whose_members_say_very_much_stays_classic(
    make_town: Callable[..., Town], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two topics and, in what they were given, two more with two partitions each: eight items."""
    town = make_town()
    classic_pair(town)
    monkeypatch.setattr(migration, "UPGRADE_ITEMS_MAX", 7)
    assert town.new_join("new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(town.group, ClassicGroup)
    monkeypatch.setattr(migration, "UPGRADE_ITEMS_MAX", 8)
    assert town.new_join("new").error_code == ErrorCode.NONE
    assert isinstance(town.group, ConsumerGroup)


def test_a_member_that_cannot_be_understood_keeps_the_group_classic(make_town: Callable[..., Town]) -> None:
    town = make_town()
    first, _ = classic_pair(town)
    member = town.group.members[first]
    member.protocols = (("range", b"\0\0\x7f\xff\xff\xff"),)
    response = town.new_join("new")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(town.group, ClassicGroup)
