"""The whole shard: consumer groups side by side with classic ones, and a random life with its invariants.

The life: clients that come, go, die, restart and commit, at any pace, over a coordinator that may fail over between
any two steps. A failure names its seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode
from millpond.coordinators import patterns
from millpond.coordinators.groups.classic import ClassicGroup, State
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.history import assigned_partitions
from millpond.coordinators.groups.rebalance import SESSION
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.groups.timers import TimerKey
from millpond.coordinators.runtime import TransactionalShard
from millpond.coordinators.shard import Shard
from millpond.wire import messages as m


def test_is_a_shard(stage) -> None:
    shard: Shard = stage.shard
    assert isinstance(shard, TransactionalShard)


def test_request_of_another_coordinator_is_a_bug(stage) -> None:
    with pytest.raises(AssertionError):
        stage.send(m.FetchRequest(), 4)


def test_records_of_a_later_program_are_left_alone(stage) -> None:
    stage.shard.replay(0, b"\x00\x63whatever", b"?")
    stage.shard.replay_transactional(1, 1, 0, b"\x00\x02\x00\x01g", b"?")
    assert stage.shard.groups == {}


def test_time_stops_at_the_first_records_so_that_they_can_be_replayed(stage) -> None:
    for group in ("g", "h"):
        stage.stable(group=group)
    at_ms = stage.now_ms + 100_000
    first = stage.shard.on_time(at_ms)
    assert len(first.records) == 1
    assert stage.shard.next_deadline_ms() <= at_ms
    stage.take(first)
    stage.take(stage.shard.on_time(at_ms))
    assert {group.state_name for group in stage.shard.groups.values()} == {"Empty"}


class TestConsumerGroups:
    def beat(self, stage, member_id: str, epoch: int, **more: Any) -> Any:
        if epoch == 0:
            more = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **more}
        return stage.ask(
            m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **more), 1
        )

    def test_lives_beside_classic_ones(self, stage) -> None:
        reply = self.beat(stage, "m", 0)
        assert reply.error_code == 0
        assert [len(each.partitions) for each in reply.assignment.topic_partitions] == [8]
        stage.commit(1, group="simple")
        assert {each.group_id: each.group_type for each in stage.shard.list_groups()} == {
            "g": "consumer",
            "simple": "classic",
        }
        (described,) = stage.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert (described.group_state, len(described.members)) == ("Stable", 1)
        (unknown,) = stage.ask(m.ConsumerGroupDescribeRequest(group_ids=["simple"]), 1).groups
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (classic,) = stage.ask(m.DescribeGroupsRequest(groups=["g"]), 6).groups
        assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert stage.shard.history("g")

    def test_commits_are_fenced_by_epoch(self, stage) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        assert stage.commit(5, "m", epoch) == 0
        assert stage.commit(6, "m", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert stage.commit(6, "x", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert stage.committed() == 5

    def test_transactions_hear_of_a_stale_epoch_as_they_always_did(self, stage) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        assert stage.commit_in_transaction(5, generation_id=epoch, member_id="m") == 0
        stale = stage.commit_in_transaction(5, generation_id=epoch + 1, member_id="m")
        assert stale == ErrorCode.ILLEGAL_GENERATION

    def test_fetches_are_fenced_by_epoch(self, stage) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        kind = m.OffsetFetchRequest
        asked = kind.OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=epoch + 1, topics=None)
        assert stage.ask(kind(groups=[asked]), 9).groups[0].error_code == ErrorCode.STALE_MEMBER_EPOCH

    def test_unknown_group_and_epoch(self, stage) -> None:
        assert self.beat(stage, "m", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert self.beat(stage, "m", 0, server_assignor="?").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert stage.shard.groups == {}

    def test_session_ends_and_survives_a_failover(self, stage) -> None:
        self.beat(stage, "m", 0)
        stage.pass_time(40_000)
        stage.fail_over()
        stage.pass_time(40_000)
        assert stage.group().state_name != "Empty"
        stage.pass_time(5000)
        assert stage.group().state_name == "Empty"

    def test_leaves_nothing_behind_when_it_is_deleted(self, stage) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        stage.commit(1, "m", epoch)
        deleting = m.DeleteGroupsRequest(groups_names=["g"])
        assert stage.ask(deleting, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        self.beat(stage, "m", -1)
        assert stage.ask(deleting, 2).results[0].error_code == 0
        assert stage.shard.groups == stage.loaded_again().groups == {}
        assert set({each.key: each.value for each in stage.log}.values()) == {None}

    def test_empty_one_becomes_classic_for_a_classic_member_and_keeps_its_offsets(self, stage) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        stage.commit(77, "m", epoch)
        self.beat(stage, "m", -1)
        stage.stable()
        assert stage.group().type_name == stage.loaded_again().groups["g"].type_name == "classic"
        assert stage.committed() == 77

    def test_empty_classic_one_becomes_new_for_a_new_member_and_keeps_its_offsets(self, stage) -> None:
        (member,), generation = stage.stable()
        stage.commit(77, member, generation)
        stage.leave(member)
        assert self.beat(stage, "m", 0).error_code == 0
        assert stage.group().type_name == stage.loaded_again().groups["g"].type_name == "consumer"
        assert stage.committed() == 77

    def test_live_classic_one_is_taken_over_and_given_back(self, stage) -> None:
        (old,), generation = stage.stable()
        stage.commit(5, old, generation)
        assert self.beat(stage, "new", 0).error_code == 0
        assert stage.group().type_name == "consumer"
        assert stage.heartbeat(old, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        rejoined = stage.answer(stage.join(old))
        assert rejoined.error_code == 0
        assert stage.answer(stage.sync(old, rejoined.generation_id)).error_code == 0
        self.beat(stage, "new", -1)
        assert stage.group().type_name == "classic"
        assert stage.heartbeat(old, stage.group().generation) == ErrorCode.REBALANCE_IN_PROGRESS
        again = stage.join(old)
        ids, _ = stage.settle([again])
        assert ids == [old]
        assert stage.committed() == 5
        stage.pass_time(10_000)
        assert stage.group().state_name == "Empty"

    def test_looks_again_when_topics_change(self, stage, remove_topic: Callable) -> None:
        epoch = self.beat(stage, "m", 0).member_epoch
        remove_topic("t")
        stage.take(stage.shard.on_topics_changed(["t"], stage.now_ms))
        stage.pass_time(0)
        assert self.beat(stage, "m", epoch).assignment.topic_partitions == []
        assert self.beat(stage, "m", epoch, topic_partitions=[]).member_epoch > epoch


# A random life.


@dataclass
class Client:
    """One consumer: asks, hears, and does what a well-behaved client does, at a random pace."""

    instance: str | None
    member_id: str = ""
    generation: int = -1
    waiting: Any = None
    is_syncing: bool = False
    owned: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return self.instance or self.member_id

    def forget(self) -> None:
        self.member_id, self.generation, self.waiting, self.owned = "", -1, None, ()


class Life:
    def __init__(self, stage: Any, seed: int, assigned: Callable[..., bytes]) -> None:
        self.stage, self.random, self.assigned = stage, Random(seed), assigned
        self.clients = [Client(None) for _ in range(3)] + [Client(f"i{number}") for number in range(2)]
        self.given: dict[int, dict[tuple[str, int], str]] = {}
        self.acknowledged: dict[int, int] = {}
        self.snapshots: dict[int, Any] = {}
        self.lost: set[Any] = set()
        self.generation_seen = 0

    def run(self, steps: int) -> None:
        often = [self.talk] * 25 + [self.talk_all] * 10
        often += [self.heartbeat] * 30 + [self.commit] * 20 + [self.wait] * 12
        seldom = [self.leave, self.die, self.restart, self.restart, self.transact, self.fail_over, self.unload]
        calm = self.random.choice([0, 1, 3])
        for _ in range(steps):
            self.random.choice(often * calm + often + seldom)(self.random.choice(self.clients))
            self.check()
        self.end()

    # What can happen.

    def talk(self, client: Client) -> None:
        stage = self.stage
        if client.waiting is not None:
            reply = stage.answer(client.waiting)
            if reply is not None:
                client.waiting = None
                self.hear_sync(client, reply) if client.is_syncing else self.hear_join(client, reply)
        elif client.generation < 0:
            self.join(client)

    def talk_all(self, client: Client) -> None:
        for each in self.clients:
            self.talk(each)

    def join(self, client: Client) -> None:
        client.is_syncing, client.owned = False, ()
        client.waiting = self.stage.join(
            client.member_id,
            instance=client.instance,
            version=self.random.choice([5, 8, 9]),
            topics=self.random.choice([("t",), ("t",), ("t", "u")]),
            session_ms=self.random.choice([6000, 20_000]),
            rebalance_ms=self.random.choice([5000, 30_000]),
        )

    def hear_join(self, client: Client, reply: Any) -> None:
        code = reply.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()
        elif code == 0:
            client.member_id, client.generation = reply.member_id, reply.generation_id
            self.sync(client, reply)
        else:
            assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), code

    def sync(self, client: Client, reply: Any) -> None:
        given = {}
        if reply.leader == client.member_id and not reply.skip_assignment:
            for number, member in enumerate(reply.members[:8]):
                given[member.member_id] = self.assigned(("t", number))
        client.is_syncing = True
        client.waiting = self.stage.sync(client.member_id, client.generation, given, instance=client.instance)

    def hear_sync(self, client: Client, reply: Any) -> None:
        if reply.error_code == 0:
            client.owned = tuple(assigned_partitions(reply.assignment))
            owners = self.given.setdefault(client.generation, {})
            for place in client.owned:
                assert owners.setdefault(place, client.name) == client.name, "two owners in one generation"
            assert client.generation >= self.generation_seen or client.generation in self.given
        else:
            self.turned_away(client, reply.error_code)

    def turned_away(self, client: Client, code: int) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()
        elif code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.NOT_COORDINATOR):
            client.generation, client.owned = -1, ()
        else:
            raise AssertionError(code)

    def heartbeat(self, client: Client) -> None:
        if client.owned and client.waiting is None:
            code = self.stage.heartbeat(client.member_id, client.generation, client.instance)
            if code:
                self.turned_away(client, code)

    def commit(self, client: Client) -> None:
        if client.owned and client.waiting is None:
            (_, partition) = client.owned[0]
            offset = self.acknowledged.get(partition, 0) + 1
            code = self.stage.commit(
                offset, client.member_id, client.generation, partition=partition, instance=client.instance
            )
            if code == 0:
                owner = self.given[client.generation][("t", partition)]
                assert owner == client.name, "somebody else's partition"
                self.acknowledged[partition] = offset
            else:
                self.turned_away(client, code)

    def transact(self, client: Client) -> None:
        partition, offset = self.random.randrange(2), self.random.randrange(1000)
        assert self.stage.commit_in_transaction(offset, partition=partition, topic="u") == 0
        committed = self.random.choice([True, False])
        if self.random.random() < 0.8:
            self.stage.marker(7, 0, committed)

    def wait(self, client: Client) -> None:
        self.stage.pass_time(self.random.choice([10, 100, 1000, 3000]))

    def leave(self, client: Client) -> None:
        if client.member_id:
            self.stage.leave(client.member_id) if client.instance is None else None
            self.lose(client)

    def die(self, client: Client) -> None:
        self.lose(client)

    def restart(self, client: Client) -> None:
        if client.instance is not None:
            self.lose(client)
            self.join(client)

    def lose(self, client: Client) -> None:
        client.forget()

    def fail_over(self, client: Client) -> None:
        """Without a word: whoever waits there is never answered, and tries again."""
        self.lost |= {token for token in self.stage.versions if token not in self.stage.replies}
        self.stage.fail_over()
        for each in self.clients:
            if each.waiting in self.lost:
                each.waiting, each.generation = None, -1

    def unload(self, client: Client) -> None:
        self.stage.take(self.stage.shard.unload())
        self.stage.fail_over()

    # What must hold.

    def check(self) -> None:
        shard = self.stage.shard
        assert all(len(replies) == 1 for replies in self.stage.replies.values()), "answered more than once"
        for partition, offset in self.acknowledged.items():
            found = shard.offsets.by_group["g"]["t"][partition].offset
            assert found == offset, f"the offset of {partition} went from {offset} to {found}"
        group = shard.groups.get("g")
        if isinstance(group, ClassicGroup):
            waiting = [each for each in group.members.values() if each.joining or each.syncing]
            assert not (group.state in (State.STABLE, State.EMPTY) and waiting), "parked for nothing"
            for each in group.members:
                assert TimerKey(SESSION, "g", each) in shard.shared.timers, "nobody would notice if it were gone"
            assert group.state is State.EMPTY or group.members or group.state is State.PREPARING
            if group.state is State.STABLE:
                assert group.generation >= self.generation_seen, "a generation fell"
                self.generation_seen = group.generation
        length = len(self.stage.log)
        self.snapshots[length] = durable(shard)
        if self.random.random() < 0.1:
            assert durable(self.stage.loaded_again()) == durable(shard)

    def end(self) -> None:
        """Everybody falls silent: the group empties, and nobody is left without an answer."""
        self.stage.pass_time(10 * 60_000)
        unanswered = set(self.stage.versions) - set(self.stage.replies) - self.lost
        assert not unanswered
        group = self.stage.shard.groups.get("g")
        assert group is None or group.is_empty
        for length in self.random.sample(sorted(self.snapshots), min(10, len(self.snapshots))):
            assert durable(self.stage.loaded_again(until=length)) == self.snapshots[length]


def durable(shard: GroupShard) -> dict[str, Any]:
    """What a log can tell of a shard. Of a group between two generations, only what the last one had."""
    groups: dict[str, Any] = {}
    for name, group in shard.groups.items():
        assert isinstance(group, ClassicGroup)
        if group.is_written or shard.offsets.has_any(name):
            groups[name] = group.is_written, dict(group.assignments)
    pending = {producer: dict(each.offsets) for producer, each in shard.offsets.pending.items()}
    offsets = {name: dict(shard.offsets.of_group(name)) for name in shard.offsets.by_group}
    return {"groups": groups, "offsets": offsets, "pending": pending}


def settled(shard: GroupShard) -> dict[str, Any]:
    """Groups that are at rest, whole: a fresh shard must see them the same."""
    return {
        name: (
            group.state,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader,
            group.subscribed,
            group.static_members,
            [
                (each.id, each.instance_id, each.assignment, each.session_timeout_ms)
                for each in group.members.values()
            ],
        )
        for name, group in shard.groups.items()
        if isinstance(group, ClassicGroup) and group.is_written and group.state in (State.STABLE, State.EMPTY)
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_random_life(make_stage: Callable, assigned: Callable, seed: int) -> None:
    stage = make_stage(initial_rebalance_delay_ms=500)
    Life(stage, seed, assigned).run(500)
    fresh = settled(stage.loaded_again())
    assert settled(stage.shard) == {name: fresh[name] for name in settled(stage.shard)}


def _join_by_pattern(stage: Any, group: str, pattern: str) -> None:
    body = m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=f"m-{group}",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex=pattern,
        topic_partitions=[],
    )
    assert stage.ask(body, 1).error_code == 0


def test_a_topic_that_concerns_nobody_lets_no_group_look_again(make_stage, add_topic, monkeypatch) -> None:
    stage = make_stage()
    for number in range(5):
        _join_by_pattern(stage, f"g{number}", "t.*")
    looked: list[str] = []
    look = ConsumerGroup.on_topics_changed
    monkeypatch.setattr(
        ConsumerGroup, "on_topics_changed", lambda group, now_ms: looked.append(group.group_id) or look(group, now_ms)
    )
    add_topic("unrelated")
    written = len(stage.log)
    stage.take(stage.shard.on_topics_changed(["unrelated"], stage.now_ms))
    stage.pass_time(0)
    assert looked == []
    add_topic("t2")
    stage.take(stage.shard.on_topics_changed(["t2"], stage.now_ms))
    stage.pass_time(0)
    assert len(stage.log) == written + 10
    assert looked == [f"g{number}" for number in range(5)]


def test_many_groups_that_look_again_do_so_in_several_steps(make_stage: Any, add_topic: Any) -> None:
    stage = make_stage()
    for number in range(250):
        _join_by_pattern(stage, f"g{number}", "t.*")
    add_topic("t2")
    assert stage.take(stage.shard.on_topics_changed(["t2"], stage.now_ms)).records == []
    first = stage.take(stage.shard.on_time(stage.now_ms))
    assert 0 < len(first.records) <= 200
    stage.pass_time(50)
    groups = stage.shard.groups.values()
    assert all(group.state.patterns["t.*"].topics == ("t", "t2") for group in groups)


MANY_PATTERNS = 400
"""More than are kept in their compiled form."""


def _pattern(number: int) -> str:
    """About 50 steps; it stands for t, and for x2 or y2."""
    return f"(t[0-9]?{'[a-z]?' * 20}|{'xy'[number % 2]}2|z{number})"


@pytest.fixture
def many_patterns(make_stage: Any) -> Any:
    stage = make_stage()
    for number in range(MANY_PATTERNS):
        _join_by_pattern(stage, f"g{number}", _pattern(number))
    return stage


def _topics_of_all(shard: GroupShard) -> list[tuple[str, ...]]:
    groups = [shard.groups[f"g{number}"] for number in range(MANY_PATTERNS)]
    return [group.state.patterns[_pattern(number)].topics for number, group in enumerate(groups)]


def _change(stage: Any, *names: str) -> None:
    stage.take(stage.shard.on_topics_changed(names, stage.now_ms))


def test_patterns_are_matched_with_a_new_topic_in_several_steps(
    many_patterns: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = many_patterns
    made: list[str] = []
    parse = patterns._Parser.parse
    monkeypatch.setattr(patterns._Parser, "parse", lambda self: made.append(self.pattern) or parse(self))
    add_topic("x2")
    _change(stage, "x2")
    assert made == []
    most = 0
    while (deadline_ms := stage.shard.next_deadline_ms()) is not None and deadline_ms < stage.now_ms + 1_000:
        before = len(made)
        stage.now_ms = max(stage.now_ms, deadline_ms)
        stage.take(stage.shard.on_time(stage.now_ms))
        most = max(most, len(made) - before)
    assert MANY_PATTERNS <= len(made) < 2 * MANY_PATTERNS
    assert most < 100
    assert _topics_of_all(stage.shard) == [("t", "x2") if number % 2 == 0 else ("t",) for number in range(400)]


def test_topics_that_change_while_groups_have_yet_to_look_are_not_missed(
    many_patterns: Any, add_topic: Any, remove_topic: Any
) -> None:
    stage = many_patterns
    add_topic("x2")
    _change(stage, "x2")
    stage.take(stage.shard.on_time(stage.now_ms))
    add_topic("y2")
    _change(stage, "y2")
    for _ in range(3):
        stage.pass_time(1)
    remove_topic("x2")
    _change(stage, "x2")
    assert len(set(_topics_of_all(stage.shard))) > 1, "not all have looked"
    stage.pass_time(200)
    assert _topics_of_all(stage.shard) == [("t",) if number % 2 == 0 else ("t", "y2") for number in range(400)]


def test_groups_that_had_yet_to_look_do_so_at_the_next_coordinator(many_patterns: Any, add_topic: Any) -> None:
    stage = many_patterns
    add_topic("x2")
    _change(stage, "x2")
    stage.take(stage.shard.on_time(stage.now_ms))
    stage.fail_over()
    stage.pass_time(200)
    assert _topics_of_all(stage.shard) == [("t", "x2") if number % 2 == 0 else ("t",) for number in range(400)]
