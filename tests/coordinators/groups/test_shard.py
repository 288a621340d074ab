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


def test_is_a_shard(coordinator) -> None:
    shard: Shard = coordinator.shard
    assert isinstance(shard, TransactionalShard)


def test_request_of_another_coordinator_is_a_bug(coordinator) -> None:
    with pytest.raises(AssertionError):
        coordinator.send(m.FetchRequest(), 4)


def test_records_of_a_later_program_are_left_alone(coordinator) -> None:
    coordinator.shard.replay(0, b"\x00\x63whatever", b"?")
    coordinator.shard.replay_transactional(1, 1, 0, b"\x00\x02\x00\x01g", b"?")
    assert coordinator.shard.groups == {}


def test_time_stops_at_the_first_records_so_that_they_can_be_replayed(coordinator) -> None:
    for group in ("g", "h"):
        coordinator.stable(group=group)
    at_ms = coordinator.now_ms + 100_000
    first = coordinator.shard.on_timer(at_ms)
    assert len(first.records) == 1
    assert coordinator.shard.next_deadline_ms() <= at_ms
    coordinator.take(first)
    coordinator.take(coordinator.shard.on_timer(at_ms))
    assert {group.state_name for group in coordinator.shard.groups.values()} == {"Empty"}


class TestConsumerGroups:
    def beat(self, coordinator, member_id: str, epoch: int, **more: Any) -> Any:
        if epoch == 0:
            more = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **more}
        return coordinator.ask(
            m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **more), 1
        )

    def test_lives_beside_classic_ones(self, coordinator) -> None:
        reply = self.beat(coordinator, "m", 0)
        assert reply.error_code == 0
        assert [len(each.partitions) for each in reply.assignment.topic_partitions] == [8]
        coordinator.commit(1, group="simple")
        assert {each.group_id: each.group_type for each in coordinator.shard.list_groups()} == {
            "g": "consumer",
            "simple": "classic",
        }
        (described,) = coordinator.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert (described.group_state, len(described.members)) == ("Stable", 1)
        (unknown,) = coordinator.ask(m.ConsumerGroupDescribeRequest(group_ids=["simple"]), 1).groups
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (classic,) = coordinator.ask(m.DescribeGroupsRequest(groups=["g"]), 6).groups
        assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert coordinator.shard.history("g")

    def test_commits_are_fenced_by_epoch(self, coordinator) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        assert coordinator.commit(5, "m", epoch) == 0
        assert coordinator.commit(6, "m", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert coordinator.commit(6, "x", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.committed() == 5

    def test_transactions_hear_of_a_stale_epoch_as_they_always_did(self, coordinator) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        assert coordinator.commit_in_transaction(5, generation_id=epoch, member_id="m") == 0
        stale = coordinator.commit_in_transaction(5, generation_id=epoch + 1, member_id="m")
        assert stale == ErrorCode.ILLEGAL_GENERATION

    def test_fetches_are_fenced_by_epoch(self, coordinator) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        kind = m.OffsetFetchRequest
        asked = kind.OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=epoch + 1, topics=None)
        assert coordinator.ask(kind(groups=[asked]), 9).groups[0].error_code == ErrorCode.STALE_MEMBER_EPOCH

    def test_unknown_group_and_epoch(self, coordinator) -> None:
        assert self.beat(coordinator, "m", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert self.beat(coordinator, "m", 0, server_assignor="?").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert coordinator.shard.groups == {}

    def test_session_ends_and_survives_a_failover(self, coordinator) -> None:
        self.beat(coordinator, "m", 0)
        coordinator.pass_time(40_000)
        coordinator.fail_over()
        coordinator.pass_time(40_000)
        assert coordinator.group().state_name != "Empty"
        coordinator.pass_time(5000)
        assert coordinator.group().state_name == "Empty"

    def test_leaves_nothing_behind_when_it_is_deleted(self, coordinator) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        coordinator.commit(1, "m", epoch)
        deleting = m.DeleteGroupsRequest(groups_names=["g"])
        assert coordinator.ask(deleting, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        self.beat(coordinator, "m", -1)
        assert coordinator.ask(deleting, 2).results[0].error_code == 0
        assert coordinator.shard.groups == coordinator.loaded_again().groups == {}
        assert set({each.key: each.value for each in coordinator.log}.values()) == {None}

    def test_empty_one_becomes_classic_for_a_classic_member_and_keeps_its_offsets(self, coordinator) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        coordinator.commit(77, "m", epoch)
        self.beat(coordinator, "m", -1)
        coordinator.stable()
        assert coordinator.group().type_name == coordinator.loaded_again().groups["g"].type_name == "classic"
        assert coordinator.committed() == 77

    def test_empty_classic_one_becomes_new_for_a_new_member_and_keeps_its_offsets(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        coordinator.commit(77, member, generation)
        coordinator.leave(member)
        assert self.beat(coordinator, "m", 0).error_code == 0
        assert coordinator.group().type_name == coordinator.loaded_again().groups["g"].type_name == "consumer"
        assert coordinator.committed() == 77

    def test_live_classic_one_is_taken_over_and_given_back(self, coordinator) -> None:
        (old,), generation = coordinator.stable()
        coordinator.commit(5, old, generation)
        assert self.beat(coordinator, "new", 0).error_code == 0
        assert coordinator.group().type_name == "consumer"
        assert coordinator.heartbeat(old, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        rejoined = coordinator.answer(coordinator.join(old))
        assert rejoined.error_code == 0
        assert coordinator.answer(coordinator.sync(old, rejoined.generation_id)).error_code == 0
        self.beat(coordinator, "new", -1)
        assert coordinator.group().type_name == "classic"
        assert coordinator.heartbeat(old, coordinator.group().generation) == ErrorCode.REBALANCE_IN_PROGRESS
        again = coordinator.join(old)
        ids, _ = coordinator.settle([again])
        assert ids == [old]
        assert coordinator.committed() == 5
        coordinator.pass_time(10_000)
        assert coordinator.group().state_name == "Empty"

    def test_looks_again_when_topics_change(self, coordinator, remove_topic: Callable) -> None:
        epoch = self.beat(coordinator, "m", 0).member_epoch
        remove_topic("t")
        coordinator.take(coordinator.shard.on_topics_changed(["t"], coordinator.now_ms))
        coordinator.pass_time(0)
        assert self.beat(coordinator, "m", epoch).assignment.topic_partitions == []
        assert self.beat(coordinator, "m", epoch, topic_partitions=[]).member_epoch > epoch


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


class Simulation:
    def __init__(self, coordinator: Any, seed: int, assigned: Callable[..., bytes]) -> None:
        self.coordinator, self.random, self.assigned = coordinator, Random(seed), assigned
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
        coordinator = self.coordinator
        if client.waiting is not None:
            reply = coordinator.answer(client.waiting)
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
        client.waiting = self.coordinator.join(
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
        client.waiting = self.coordinator.sync(client.member_id, client.generation, given, instance=client.instance)

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
            code = self.coordinator.heartbeat(client.member_id, client.generation, client.instance)
            if code:
                self.turned_away(client, code)

    def commit(self, client: Client) -> None:
        if client.owned and client.waiting is None:
            (_, partition) = client.owned[0]
            offset = self.acknowledged.get(partition, 0) + 1
            code = self.coordinator.commit(
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
        assert self.coordinator.commit_in_transaction(offset, partition=partition, topic="u") == 0
        committed = self.random.choice([True, False])
        if self.random.random() < 0.8:
            self.coordinator.marker(7, 0, committed)

    def wait(self, client: Client) -> None:
        self.coordinator.pass_time(self.random.choice([10, 100, 1000, 3000]))

    def leave(self, client: Client) -> None:
        if client.member_id:
            self.coordinator.leave(client.member_id) if client.instance is None else None
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
        """Without a response: clients that wait there are never answered, and try again."""
        self.lost |= {
            request_id for request_id in self.coordinator.versions if request_id not in self.coordinator.replies
        }
        self.coordinator.fail_over()
        for each in self.clients:
            if each.waiting in self.lost:
                each.waiting, each.generation = None, -1

    def unload(self, client: Client) -> None:
        self.coordinator.take(self.coordinator.shard.unload())
        self.coordinator.fail_over()

    # What must hold.

    def check(self) -> None:
        shard = self.coordinator.shard
        assert all(len(replies) == 1 for replies in self.coordinator.replies.values()), "answered more than once"
        for partition, offset in self.acknowledged.items():
            found = shard.offsets.by_group["g"]["t"][partition].offset
            assert found == offset, f"the offset of {partition} went from {offset} to {found}"
        group = shard.groups.get("g")
        if isinstance(group, ClassicGroup):
            waiting = [each for each in group.members.values() if each.joining or each.syncing]
            assert not (group.state in (State.STABLE, State.EMPTY) and waiting), "pending for nothing"
            for each in group.members:
                assert TimerKey(SESSION, "g", each) in shard.shared.timers, "nobody would notice if it were gone"
            assert group.state is State.EMPTY or group.members or group.state is State.PREPARING
            if group.state is State.STABLE:
                assert group.generation >= self.generation_seen, "a generation fell"
                self.generation_seen = group.generation
        length = len(self.coordinator.log)
        self.snapshots[length] = durable(shard)
        if self.random.random() < 0.1:
            assert durable(self.coordinator.loaded_again()) == durable(shard)

    def end(self) -> None:
        """Everybody falls silent: the group empties, and nobody is left without an answer."""
        self.coordinator.pass_time(10 * 60_000)
        unanswered = set(self.coordinator.versions) - set(self.coordinator.replies) - self.lost
        assert not unanswered
        group = self.coordinator.shard.groups.get("g")
        assert group is None or group.is_empty
        for length in self.random.sample(sorted(self.snapshots), min(10, len(self.snapshots))):
            assert durable(self.coordinator.loaded_again(until=length)) == self.snapshots[length]


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
def test_random_life(make_coordinator: Callable, assigned: Callable, seed: int) -> None:
    coordinator = make_coordinator(initial_rebalance_delay_ms=500)
    Simulation(coordinator, seed, assigned).run(500)
    fresh = settled(coordinator.loaded_again())
    assert settled(coordinator.shard) == {name: fresh[name] for name in settled(coordinator.shard)}


def _join_by_pattern(coordinator: Any, group: str, pattern: str) -> None:
    body = m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=f"m-{group}",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex=pattern,
        topic_partitions=[],
    )
    assert coordinator.ask(body, 1).error_code == 0


def test_an_unsubscribed_topic_makes_no_group_re_evaluate(make_coordinator, add_topic, monkeypatch) -> None:
    coordinator = make_coordinator()
    for number in range(5):
        _join_by_pattern(coordinator, f"g{number}", "t.*")
    looked: list[str] = []
    look = ConsumerGroup.on_topics_changed
    monkeypatch.setattr(
        ConsumerGroup, "on_topics_changed", lambda group, now_ms: looked.append(group.group_id) or look(group, now_ms)
    )
    add_topic("unrelated")
    written = len(coordinator.log)
    coordinator.take(coordinator.shard.on_topics_changed(["unrelated"], coordinator.now_ms))
    coordinator.pass_time(0)
    assert looked == []
    add_topic("t2")
    coordinator.take(coordinator.shard.on_topics_changed(["t2"], coordinator.now_ms))
    coordinator.pass_time(0)
    assert len(coordinator.log) == written + 10
    assert looked == [f"g{number}" for number in range(5)]


def test_many_groups_that_look_again_do_so_in_several_steps(make_coordinator: Any, add_topic: Any) -> None:
    coordinator = make_coordinator()
    for number in range(250):
        _join_by_pattern(coordinator, f"g{number}", "t.*")
    add_topic("t2")
    assert coordinator.take(coordinator.shard.on_topics_changed(["t2"], coordinator.now_ms)).records == []
    first = coordinator.take(coordinator.shard.on_timer(coordinator.now_ms))
    assert 0 < len(first.records) <= 200
    coordinator.pass_time(50)
    groups = coordinator.shard.groups.values()
    assert all(group.state.patterns["t.*"].topics == ("t", "t2") for group in groups)


MANY_PATTERNS = 400
"""More than are kept in their compiled form."""


def _pattern(number: int) -> str:
    """About 50 steps; it stands for t, and for x2 or y2."""
    return f"(t[0-9]?{'[a-z]?' * 20}|{'xy'[number % 2]}2|z{number})"


@pytest.fixture
def many_patterns(make_coordinator: Any) -> Any:
    coordinator = make_coordinator()
    for number in range(MANY_PATTERNS):
        _join_by_pattern(coordinator, f"g{number}", _pattern(number))
    return coordinator


def _topics_of_all(shard: GroupShard) -> list[tuple[str, ...]]:
    groups = [shard.groups[f"g{number}"] for number in range(MANY_PATTERNS)]
    return [group.state.patterns[_pattern(number)].topics for number, group in enumerate(groups)]


def _change(coordinator: Any, *names: str) -> None:
    coordinator.take(coordinator.shard.on_topics_changed(names, coordinator.now_ms))


def test_patterns_are_matched_with_a_new_topic_in_several_steps(
    many_patterns: Any, add_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = many_patterns
    made: list[str] = []
    parse = patterns._Parser.parse
    monkeypatch.setattr(patterns._Parser, "parse", lambda self: made.append(self.pattern) or parse(self))
    add_topic("x2")
    _change(coordinator, "x2")
    assert made == []
    most = 0
    while (
        deadline_ms := coordinator.shard.next_deadline_ms()
    ) is not None and deadline_ms < coordinator.now_ms + 1_000:
        before = len(made)
        coordinator.now_ms = max(coordinator.now_ms, deadline_ms)
        coordinator.take(coordinator.shard.on_timer(coordinator.now_ms))
        most = max(most, len(made) - before)
    assert MANY_PATTERNS <= len(made) < 2 * MANY_PATTERNS
    assert most < 100
    assert _topics_of_all(coordinator.shard) == [("t", "x2") if number % 2 == 0 else ("t",) for number in range(400)]


def test_topics_that_change_while_groups_have_yet_to_look_are_not_missed(
    many_patterns: Any, add_topic: Any, remove_topic: Any
) -> None:
    coordinator = many_patterns
    add_topic("x2")
    _change(coordinator, "x2")
    coordinator.take(coordinator.shard.on_timer(coordinator.now_ms))
    add_topic("y2")
    _change(coordinator, "y2")
    for _ in range(3):
        coordinator.pass_time(1)
    remove_topic("x2")
    _change(coordinator, "x2")
    assert len(set(_topics_of_all(coordinator.shard))) > 1, "not all have looked"
    coordinator.pass_time(200)
    assert _topics_of_all(coordinator.shard) == [("t",) if number % 2 == 0 else ("t", "y2") for number in range(400)]


def test_groups_that_had_yet_to_look_do_so_at_the_next_coordinator(many_patterns: Any, add_topic: Any) -> None:
    coordinator = many_patterns
    add_topic("x2")
    _change(coordinator, "x2")
    coordinator.take(coordinator.shard.on_timer(coordinator.now_ms))
    coordinator.fail_over()
    coordinator.pass_time(200)
    assert _topics_of_all(coordinator.shard) == [("t", "x2") if number % 2 == 0 else ("t",) for number in range(400)]
