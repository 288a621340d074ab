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
class ShardHarness:
    """A shard, its log, and replies by request."""

    harness: Any
    settings: GroupSettings
    now_ms: int = 1_000
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    replies: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shard = GroupShard(self.harness.image, self.settings, self.harness.group.entropy)
        self.shard.on_loaded(self.now_ms)

    def take_in(self, effects: Effects) -> None:
        for record in effects.records:
            self.shard.replay(len(self.log), record.key, record.value)
            self.log.append((record.key, record.value))
        self.replies.update(dict(effects.replies))

    def send(self, request_id: str, body: m.Message, version: int) -> Any:
        """The reply; None while it is pending."""
        self.replies.pop(request_id, None)
        self.take_in(self.shard.step(Request(body, version, request_id, "c", "/h"), self.now_ms))
        return self.replies.get(request_id)

    def pass_time(self, duration_ms: int) -> None:
        end = self.now_ms + duration_ms
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.take_in(self.shard.on_timer(self.now_ms))
        self.now_ms = end

    def reloaded(self) -> GroupShard:
        again = GroupShard(self.harness.image, self.settings, self.harness.group.entropy)
        for offset, (key, value) in enumerate(self.log):
            again.replay(offset, key, value)
        return again

    @property
    def group(self) -> Any:
        return self.shard.groups["g"]

    # Requests in short.

    def join(self, member_id: str, request_id: str, *, instance_id: str | None = None, kind: str = "consumer") -> Any:
        subscription = b"\0\0" + m.ConsumerProtocolSubscription(topics=["a"]).encode(0)
        return self.send(
            request_id,
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

    def sync(
        self, member_id: str, generation: int, request_id: str, assignments: dict[str, bytes] | None = None
    ) -> Any:
        shares = [
            SYNC.SyncGroupRequestAssignment(member_id=name, assignment=share)
            for name, share in (assignments or {}).items()
        ]
        body = SYNC(group_id="g", generation_id=generation, member_id=member_id, assignments=shares)
        return self.send(request_id, body, 3)

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
def make_town(make_harness: Callable[..., Any]) -> Callable[..., ShardHarness]:
    def make(**consumer: Any) -> ShardHarness:
        settings = GroupSettings(initial_rebalance_delay_ms=0, consumer=ConsumerGroupSettings(**consumer))
        return ShardHarness(make_harness(a=4), settings)

    return make


def classic_pair(shard_harness: ShardHarness, **fields: Any) -> tuple[str, str]:
    """Two classic members that have shared out: two partitions each."""
    first = shard_harness.join("", "t1", **fields).member_id
    shard_harness.join(first, "j1", **fields)
    shard_harness.pass_time(1)
    second = shard_harness.join("", "t2", **fields).member_id
    shard_harness.join(second, "j2", **fields)
    shard_harness.join(first, "j1", **fields)
    shard_harness.pass_time(1)
    assert (shard_harness.replies["j1"].generation_id, shard_harness.replies["j2"].generation_id) == (2, 2)
    like, parts = b"\0\0", shard_harness.harness.parts
    shares = {
        first: assignment_bytes(parts(a=[0, 1]), like, shard_harness.harness.image),
        second: assignment_bytes(parts(a=[2, 3]), like, shard_harness.harness.image),
    }
    shard_harness.sync(second, 2, "s2")
    shard_harness.sync(first, 2, "s1", shares)
    return first, second


def test_an_upgrade_moves_nothing_by_itself(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    response = shard_harness.new_join("new")
    assert (response.error_code, response.member_epoch) == (0, 3)
    assert response.assignment.topic_partitions == [], "all is still in use"
    assert isinstance(shard_harness.group, ConsumerGroup)
    assert shard_harness.group.state.members[first].current.assigned == shard_harness.harness.parts(a=[0, 1])
    assert shard_harness.group.state.members[second].current.assigned == shard_harness.harness.parts(a=[2, 3])
    again = shard_harness.reloaded().groups["g"]
    assert isinstance(again, ConsumerGroup)
    assert again.state == shard_harness.group.state


def test_classic_members_go_on_in_the_upgraded_group(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("new")
    for member_id in (first, second):
        assert shard_harness.heartbeat(member_id, 2) is ErrorCode.REBALANCE_IN_PROGRESS
        joined = shard_harness.join(member_id, "j")
        assert (joined.error_code, joined.generation_id, joined.leader) == (0, 3, "")
        synced = shard_harness.sync(member_id, 3, "s")
        assert synced.error_code == 0
        assert partitions_of(synced.assignment, shard_harness.harness.image) == shard_harness.group.state.target(
            member_id
        )
        assert shard_harness.heartbeat(member_id, 3) is ErrorCode.NONE
    assert len(shard_harness.new_beat("new", 3).assignment.topic_partitions[0].partitions) == 1
    assert shard_harness.group.state_name == "Stable"


def test_a_downgrade_when_the_last_new_member_leaves(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("new")
    for member_id in (first, second):
        shard_harness.join(member_id, "j")
        shard_harness.sync(member_id, 3, "s")
    assert shard_harness.new_beat("new", -1).error_code == 0
    group = shard_harness.group
    assert isinstance(group, ClassicGroup)
    assert group.state_name == "PreparingRebalance"
    # The generation that they know: they may still commit in it before they join again.
    assert (group.generation, set(group.members)) == (3, {first, second})
    assert isinstance(shard_harness.reloaded().groups["g"], ClassicGroup)
    assert shard_harness.heartbeat(first, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    shard_harness.join(first, "j1")
    shard_harness.join(second, "j2")
    shard_harness.pass_time(1)
    joined = [shard_harness.replies[request_id] for request_id in ("j1", "j2")]
    assert [each.error_code for each in joined] == [0, 0]
    assert {each.generation_id for each in joined} == {4}
    assert sorted(len(each.members) for each in joined) == [0, 2], "one of them shares out again"


def test_a_downgrade_just_before_the_coordinator_fails_is_followed_by_its_rebalance(
    make_town: Callable[..., ShardHarness],
) -> None:
    """Found by a seed of the simulator: the next coordinator took a share of nothing for all there is to have."""
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("new")
    for member_id in (first, second):
        shard_harness.join(member_id, "j")
        shard_harness.sync(member_id, 3, "s")
    shard_harness.new_beat("new", -1)
    shard_harness.shard = shard_harness.reloaded()
    shard_harness.take_in(shard_harness.shard.on_loaded(shard_harness.now_ms))
    assert shard_harness.heartbeat(first, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    shard_harness.join(first, "j1")
    shard_harness.join(second, "j2")
    assert sorted(len(shard_harness.replies[request_id].members) for request_id in ("j1", "j2")) == [0, 2]


def test_a_downgrade_when_the_last_new_member_falls_silent(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("new")
    for member_id in (first, second):
        shard_harness.join(member_id, "j")
        shard_harness.sync(member_id, 3, "s")
    for _ in range(5):
        shard_harness.pass_time(9_000)
        for member_id in (first, second):
            shard_harness.heartbeat(member_id, 3)
    assert isinstance(shard_harness.group, ClassicGroup)


def test_a_downgrade_remembers_what_members_still_hold(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("n1")
    shard_harness.new_join("n2")
    held = {name: shard_harness.group.state.members[name].current.assigned for name in (first, second)}
    subscription = m.ConsumerProtocolSubscription
    owned = [subscription.TopicPartition(topic="a", partitions=sorted(each.partition for each in held[first]))]
    cooperative = b"\0\1" + subscription(topics=["a"], owned_partitions=owned).encode(1)
    shard_harness.send(
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
    assert shard_harness.group.state.members[first].current.revoking
    shard_harness.new_beat("n1", -1)
    shard_harness.new_beat("n2", -1)
    for name in (first, second):
        assert partitions_of(shard_harness.group.members[name].assignment, shard_harness.harness.image) == held[name]


def test_sessions_of_classic_members_go_on_after_an_upgrade(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    classic_pair(shard_harness)
    shard_harness.new_join("new")
    shard_harness.pass_time(10_000)
    assert set(shard_harness.group.state.members) == {"new"}


def test_a_static_member_may_go_back(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, _ = classic_pair(shard_harness)
    shard_harness.new_join("new", instance_id="i")
    response = shard_harness.join("", "back", instance_id="i")
    assert response.error_code == 0
    assert isinstance(shard_harness.group, ClassicGroup)
    assert len(shard_harness.group.members) == 3
    assert shard_harness.heartbeat(first, 3) is not ErrorCode.UNKNOWN_MEMBER_ID


def test_those_who_wait_in_the_classic_group_hear_of_it(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, second = classic_pair(shard_harness)
    assert shard_harness.join(first, "waits") is None
    shard_harness.new_join("new")
    assert shard_harness.replies["waits"].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shard_harness.join(second, "j").generation_id == 3


def test_an_empty_classic_group_becomes_what_its_next_member_wants(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town(migration_policy="disabled")
    first, second = classic_pair(shard_harness)
    for member_id in (first, second):
        identity = m.LeaveGroupRequest.MemberIdentity(member_id=member_id)
        shard_harness.send("l", m.LeaveGroupRequest(group_id="g", members=[identity]), 5)
    assert shard_harness.group.is_empty
    assert shard_harness.new_join("new").error_code == 0
    assert isinstance(shard_harness.group, ConsumerGroup)
    shard_harness.new_beat("new", -1)
    assert isinstance(shard_harness.group, ConsumerGroup)


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"migration_policy": "disabled"}, "consumer", "migration.policy"),
        ({"migration_policy": "downgrade"}, "consumer", "migration.policy"),
        ({"max_size": 1}, "consumer", "more than 1"),
        ({}, "connect", "protocol type"),
    ],
)
def test_groups_that_stay_classic(
    make_town: Callable[..., ShardHarness], settings: dict[str, Any], kind: str, reason: str
) -> None:
    shard_harness = make_town(**settings)
    classic_pair(shard_harness, kind=kind)
    before = len(shard_harness.log)
    response = shard_harness.new_join("new")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in response.error_message
    assert isinstance(shard_harness.group, ClassicGroup)
    assert len(shard_harness.log) == before


@pytest.mark.parametrize("settings", [{"migration_policy": "upgrade"}, {"classic_max_size": 1}])
def test_groups_that_do_not_turn_back(make_town: Callable[..., ShardHarness], settings: dict[str, Any]) -> None:
    shard_harness = make_town(**settings)
    first, second = classic_pair(shard_harness)
    shard_harness.new_join("new")
    shard_harness.new_beat("new", -1)
    assert isinstance(shard_harness.group, ConsumerGroup)
    assert set(shard_harness.group.state.members) == {first, second}
    assert shard_harness.join(first, "j").generation_id == 4, "they go on without it"


def test_a_group_whose_members_say_very_much_stays_classic(
    make_town: Callable[..., ShardHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two topics and, in what they were given, two more with two partitions each: eight items."""
    shard_harness = make_town()
    classic_pair(shard_harness)
    monkeypatch.setattr(migration, "UPGRADE_ITEMS_MAX", 7)
    assert shard_harness.new_join("new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(shard_harness.group, ClassicGroup)
    monkeypatch.setattr(migration, "UPGRADE_ITEMS_MAX", 8)
    assert shard_harness.new_join("new").error_code == ErrorCode.NONE
    assert isinstance(shard_harness.group, ConsumerGroup)


def test_a_member_that_cannot_be_understood_keeps_the_group_classic(make_town: Callable[..., ShardHarness]) -> None:
    shard_harness = make_town()
    first, _ = classic_pair(shard_harness)
    member = shard_harness.group.members[first]
    member.protocols = (("range", b"\0\0\x7f\xff\xff\xff"),)
    response = shard_harness.new_join("new")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(shard_harness.group, ClassicGroup)
