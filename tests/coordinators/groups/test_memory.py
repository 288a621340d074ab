"""What groups may keep, all together: counted as it comes and goes, refused before it is kept, never at a load."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups import memory as price
from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.shard import GroupShard
from millpond.wire import messages as m
from support.seeds import seeds

NONE, POLICY = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION


def text(*texts: str | None) -> int:
    return sum(map(price.text_bytes, texts))


def names(listed: Any) -> int:
    return sum(64 + text(each) for each in listed)


def recounted(shard: GroupShard) -> int:
    """A walk over everything that is kept."""
    total = 0
    for group in shard.groups.values():
        total += _classic(group) if isinstance(group, ClassicGroup) else _consumer(group)
    for by_topic in shard.offsets.by_group.values():
        for topic, partitions in by_topic.items():
            total += price.TOPIC_OF_OFFSETS_BYTES + text(topic)
            total += sum(price.OFFSET_BYTES + text(each.metadata) for each in partitions.values())
    for pending in shard.offsets.pending.values():
        for key, each in pending.offsets.items():
            total += price.PENDING_OFFSET_BYTES + text(key.topic, each.metadata)
    return total


def _classic(group: ClassicGroup) -> int:
    total = names(group.subscribed or ())
    total += sum(price.PROMISED_ID_BYTES + text(each) for each in group.pending)
    total += sum(price.ASSIGNMENT_BYTES + len(each) for each in group.assignments.values())
    for member in group.members.values():
        total += price.MEMBER_BYTES + text(member.id, member.instance_id, member.client_id, member.client_host)
        total += sum(price.PROTOCOL_BYTES + len(name) + len(data) for name, data in member.protocols)
    return total


def _consumer(group: ConsumerGroup) -> int:
    total = sum(price.TARGET_BYTES * len(each) for each in group.state.targets.values())
    total += sum(text(pattern) + names(each.topics) for pattern, each in group.state.patterns.items())
    for member in group.state.members.values():
        said, held = member.metadata, member.current
        total += price.MEMBER_BYTES + text(member.id, said.instance_id, said.rack_id, said.client_id)
        total += text(said.client_host, said.regex, said.assignor) + names(said.topics)
        total += price.HELD_BYTES * (len(held.assigned) + len(held.revoking))
        for name, data in said.classic.supported if said.classic else ():
            total += price.PROTOCOL_BYTES + len(name) + len(data)
    return total


def beat(coordinator: Any, member: str, epoch: int = 0, **more: Any) -> Any:
    return coordinator.consumer_beat(member, epoch, **more)


# What is refused, and when.


def test_a_member_is_refused_that_says_more_than_there_is_room_for(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    coordinator.bytes_max = 20_000
    told = coordinator.answer(coordinator.join(group="large", topics=("x" * 30_000,)))
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED, "an id is little"
    before = coordinator.shard.memory.used_bytes
    refused = coordinator.answer(coordinator.join(told.member_id, group="large", topics=("x" * 30_000,)))
    assert refused.error_code == POLICY
    assert coordinator.shard.memory.used_bytes == before
    (small,), generation = coordinator.stable()
    assert coordinator.heartbeat(small, generation) == NONE
    coordinator.pass_time(20_000)
    assert coordinator.shard.groups.keys() <= {"g"}, "an id that nobody joins with is forgotten"


def test_a_member_that_comes_again_with_more_is_refused_and_stays(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    (member,), generation = coordinator.stable()
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + 500
    assert coordinator.answer(coordinator.join(member, topics=("x" * 502,))).error_code == POLICY
    assert coordinator.group().state_name == "Stable"
    assert coordinator.heartbeat(member, generation) == NONE
    assert coordinator.answer(coordinator.join(member, topics=("y",))).error_code == NONE, (
        "what is no larger is not refused"
    )


def test_an_instance_that_comes_back_with_more_is_refused_and_its_place_is_kept(
    make_coordinator: Callable[..., Any],
) -> None:
    coordinator = make_coordinator()
    request_id = coordinator.join(instance="one")
    coordinator.pass_time(6000)
    member = coordinator.answer(request_id).member_id
    coordinator.sync(member, 1, {member: b"a"}, instance="one")
    coordinator.bytes_max = coordinator.shard.memory.used_bytes
    assert coordinator.answer(coordinator.join(instance="one", topics=("x" * 500,))).error_code == POLICY
    assert coordinator.heartbeat(member, 1, "one") == NONE


def test_a_leader_may_share_out_only_so_much(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator(member_bytes_max=1000)
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1, {follower: b"x" * 5000})
    assert coordinator.group().members[follower].syncing.body.assignments == [], "what nobody reads is not kept"
    assert coordinator.answer(coordinator.sync(leader, 1, {follower: b"x" * 1001})).error_code == POLICY
    assert coordinator.answer(waiting) is None, "the leader may do better"
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + 1000
    assert coordinator.answer(coordinator.sync(leader, 1, {follower: b"x" * 1000})).error_code == POLICY
    coordinator.bytes_max += 1000
    assert coordinator.answer(coordinator.sync(leader, 1, {follower: b"x" * 1000})).error_code == NONE
    assert coordinator.answer(waiting).assignment == b"x" * 1000


def test_a_leader_may_share_out_only_so_much_to_all_together(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator(group_bytes_max=5000)
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1)
    refused = coordinator.answer(coordinator.sync(leader, 1, dict.fromkeys((leader, follower), b"x" * 2500)))
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert coordinator.answer(waiting) is None, "the leader may do better"
    assert (
        coordinator.answer(coordinator.sync(leader, 1, dict.fromkeys((leader, follower), b"x" * 1500))).error_code
        == NONE
    )
    assert coordinator.answer(waiting).assignment == b"x" * 1500


def test_a_refused_leader_that_goes_silent_is_removed_and_the_others_continue(
    make_coordinator: Callable[..., Any],
) -> None:
    coordinator = make_coordinator(member_bytes_max=1000)
    joins = [coordinator.join_new(session_ms=600_000) for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1)
    assert coordinator.answer(coordinator.sync(leader, 1, {follower: b"x" * 1001})).error_code == POLICY
    coordinator.pass_time(60_000)
    assert coordinator.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in coordinator.group().members


def test_offsets_and_their_metadata_count(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    assert coordinator.commit(1, metadata="m" * 100) == NONE
    coordinator.bytes_max = coordinator.shard.memory.used_bytes
    assert coordinator.commit(2, metadata="m" * 100) == NONE, "what is there goes on"
    assert coordinator.commit(3, metadata="m" * 101) == POLICY
    assert coordinator.commit(3, partition=1) == POLICY
    assert coordinator.commit_in_transaction(3, partition=1) == POLICY
    assert coordinator.committed() == 2
    assert coordinator.shard.offsets.pending == {}
    coordinator.bytes_max += 2000
    assert coordinator.commit_in_transaction(3, partition=1) == NONE
    coordinator.marker(7, 0, True)
    assert coordinator.committed(1) == 3


def commit_all(
    coordinator: Any, said: list[tuple[int, str]], producer_id: int | None = None, group: str = "g", name: str = "t"
) -> set[int]:
    """One request with these partitions of a topic and their metadata; the errors in its answer."""
    if producer_id is None:
        kind, more, version = m.OffsetCommitRequest, {"generation_id_or_member_epoch": -1}, 8
        topic, partition = kind.OffsetCommitRequestTopic, kind.OffsetCommitRequestPartition
    else:
        kind, more, version = m.TxnOffsetCommitRequest, {"producer_id": producer_id, "transactional_id": "x"}, 3
        topic, partition = kind.TxnOffsetCommitRequestTopic, kind.TxnOffsetCommitRequestPartition
    partitions = [
        partition(partition_index=number, committed_offset=1, committed_metadata=metadata)
        for number, metadata in said
    ]
    reply = coordinator.ask(kind(group_id=group, topics=[topic(name=name, partitions=partitions)], **more), version)
    return {each.error_code for topic in reply.topics for each in topic.partitions}


def in_transaction(coordinator: Any, said: list[tuple[int, str]]) -> set[int]:
    return commit_all(coordinator, said, 7)


@pytest.mark.parametrize("ask", [commit_all, in_transaction])
def test_to_make_the_same_room_many_times_over_makes_it_once(
    ask: Callable[..., set[int]], make_coordinator: Callable[..., Any]
) -> None:
    coordinator = make_coordinator()
    large = "m" * 2000
    assert ask(coordinator, [(0, large)]) == {NONE}
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + 100
    hiding = [(0, "")] * 10
    assert ask(coordinator, [*hiding, (0, large), (1, large), (2, large)]) == {POLICY}
    assert coordinator.shard.memory.used_bytes <= coordinator.bytes_max
    assert ask(coordinator, [(0, large + "x" * 90)] * 10) == {NONE}, "what is named often is kept once"


def test_a_topic_whose_partitions_are_committed_together_counts_once(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    coordinator.bytes_max = 8 * (price.OFFSET_BYTES + text("")) + price.TOPIC_OF_OFFSETS_BYTES + text("t")
    assert commit_all(coordinator, [(number, "") for number in range(8)]) == {NONE}
    assert coordinator.shard.memory.used_bytes == coordinator.bytes_max


def test_a_member_of_the_new_protocol_is_refused_by_name(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    coordinator.bytes_max = 20_000
    refused = beat(coordinator, "m1", topics=["x" * 200] * 50 + [f"{each:0200}" for each in range(100)])
    assert refused.error_code == POLICY
    assert "groups.max.bytes=20000" in refused.error_message
    assert coordinator.shard.groups == {}
    assert coordinator.shard.memory.used_bytes == 0
    assert beat(coordinator, "m1").error_code == NONE


def test_few_words_that_mean_many_partitions_count_as_many(make_coordinator: Callable[..., Any]) -> None:
    """The coordinator itself shares out: what that takes is no less than what it will take."""
    coordinator = make_coordinator()
    coordinator.bytes_max = price.MEMBER_BYTES + 1000 + 8 * (price.TARGET_BYTES + price.HELD_BYTES)
    refused = beat(coordinator, "m1", topics=[], subscribed_topic_regex="[tu]")
    assert refused.error_code == POLICY
    assert beat(coordinator, "m1", topics=[], subscribed_topic_regex="[tx]").error_code == NONE
    assert coordinator.shard.memory.used_bytes <= coordinator.bytes_max
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + price.MEMBER_BYTES + 1000
    assert beat(coordinator, "m2").error_code == NONE, (
        "of what the group reads already it gets a part, which is no more"
    )


def test_a_classic_group_stays_one_where_there_is_no_room_for_another_kind(
    make_coordinator: Callable[..., Any],
) -> None:
    """Names of topics that lie in few bytes of a classic member each become a thing of their own."""
    coordinator = make_coordinator()
    coordinator.bytes_max = 5000
    (member,), generation = coordinator.stable(topics=tuple(f"{each:x}" for each in range(100)))
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + 5000
    assert beat(coordinator, "m1", group="other", topics=["nowhere"]).error_code == NONE, "there is room for the one"
    assert beat(coordinator, "m1", group="g", topics=["nowhere"]).error_code == POLICY, (
        "but not for those who are there"
    )
    assert coordinator.heartbeat(member, generation) == NONE
    assert coordinator.group().type_name == "classic"


def test_a_refused_instance_leaves_its_predecessor_and_its_clock(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    assert beat(coordinator, "m1", instance_id="one").error_code == NONE
    assert beat(coordinator, "m1", -2, instance_id="one", topics=None).error_code == NONE
    coordinator.bytes_max = coordinator.shard.memory.used_bytes
    assert beat(coordinator, "m2", instance_id="one", topics=["t", "x" * 200]).error_code == POLICY
    assert coordinator.group("n").state.members.keys() == {"m1"}
    coordinator.pass_time(60_000)
    assert coordinator.group("n").state.members == {}, "it is expected back as before"


@pytest.mark.parametrize("why", [POLICY, ErrorCode.INCONSISTENT_GROUP_PROTOCOL])
def test_an_empty_group_stays_what_it_is_when_who_wants_it_to_be_classic_is_refused(
    why: ErrorCode, make_coordinator: Callable[..., Any]
) -> None:
    coordinator = make_coordinator()
    assert beat(coordinator, "m1", group="g").error_code == NONE
    assert beat(coordinator, "m1", -1, group="g", topics=None).error_code == NONE
    epoch, end = coordinator.group().state.epoch, len(coordinator.log)
    if why is POLICY:
        coordinator.bytes_max = coordinator.shard.memory.used_bytes
        assert coordinator.answer(coordinator.join(version=3)).error_code == why
    else:
        assert coordinator.answer(coordinator.join(version=3, protocols=[])).error_code == why
    assert len(coordinator.log) == end, "nothing is written of it"
    assert (coordinator.group().type_name, coordinator.group().state.epoch) == ("consumer", epoch)
    assert coordinator.shard.memory.used_bytes == recounted(coordinator.shard)
    coordinator.bytes_max = price.ENDLESS
    assert beat(coordinator, "m1", group="g").error_code == NONE
    assert coordinator.group().state.epoch > epoch


def test_what_the_log_says_is_taken_in_whatever_the_limit_is(make_coordinator: Callable[..., Any]) -> None:
    coordinator = make_coordinator()
    (member,), generation = coordinator.stable()
    beat(coordinator, "m1")
    coordinator.commit(5, member, generation)
    used_bytes = coordinator.shard.memory.used_bytes
    coordinator.bytes_max = 1
    coordinator.fail_over()
    assert coordinator.heartbeat(member, generation) == NONE
    assert coordinator.committed() == 5
    assert coordinator.group("n").state.members.keys() == {"m1"}
    assert coordinator.commit(6, member, generation) == NONE
    assert coordinator.shard.memory.used_bytes == recounted(coordinator.shard) <= used_bytes
    assert coordinator.group().subscribed_among(["anything"]), "there is no room for the names: nothing expires early"


def test_names_without_room_are_not_kept(make_coordinator: Callable[..., Any]) -> None:
    """A few kilobytes of short names are many more in memory, and come to be when the join is over."""
    coordinator = make_coordinator()
    topics = tuple(f"{each:x}" for each in range(1000))
    _, request_id = coordinator.join_new(topics=topics)
    coordinator.bytes_max = coordinator.shard.memory.used_bytes + 1000
    coordinator.pass_time(6000)
    assert coordinator.answer(request_id).error_code == NONE
    assert coordinator.group().subscribed is None
    assert coordinator.shard.memory.used_bytes <= coordinator.bytes_max


def remembered(shard: GroupShard) -> int:
    """What the histories keep, and what is counted for it at the most."""
    total = 0
    for group in shard.groups.values():
        for each in group.history.rebalances:
            total += sum(text(why.member_id, why.client_id, why.client_host, why.detail) for why in each.causes)
            total += sum(text(move.topic, move.before, move.after) for move in each.moves)
            total += text(each.leader, each.protocol)
    return total


def test_the_history_of_an_endlessly_rebalancing_group_is_bounded(
    make_coordinator: Callable[..., Any],
) -> None:
    """Under a long name, in few rebalances of many causes and many of few."""
    coordinator = make_coordinator()
    coordinator.bytes_max = 400_000
    for number in range(3):
        coordinator.commit(1, group=f"g{number}")
    for number in range(300):
        name = f"{number}" + "x" * 30_000
        coordinator.answer(coordinator.join(version=3, client_id=name, group=f"g{number % 3}"))
        if number % 10 == 9:
            coordinator.pass_time(100_000)
    assert 0 < remembered(coordinator.shard) <= 100_000
    assert 0 < coordinator.shard.memory.history_bytes <= 100_000
    for group in coordinator.shard.groups.values():
        assert group.history.rebalances[-1].causes, "of the last one it is known who came"


def test_where_there_is_no_room_for_a_history_groups_go_on_and_the_last_causes_are_known(
    make_coordinator: Callable[..., Any],
) -> None:
    coordinator = make_coordinator()
    (member,), _ = coordinator.stable()
    coordinator.bytes_max = 1
    coordinator.leave(member)
    coordinator.bytes_max = price.ENDLESS
    assert [each.why.value for each in coordinator.group().history.rebalances[-1].causes] == ["left"]
    coordinator.stable()
    assert len(coordinator.group().history.rebalances) == 2, "from then on all is kept again"


# Whatever happens, the count is right.


class Simulation:
    def __init__(self, seed: int, coordinator: Any) -> None:
        self.random = Random(seed)
        self.coordinator = coordinator
        self.members: list[tuple[str, str]] = []
        self.beating: list[tuple[str, str]] = []
        self.request_ids: list[tuple[str, Any]] = []

    def group(self) -> str:
        return self.random.choice("abc")

    def topics(self) -> tuple[str, ...]:
        return tuple(self.random.sample(["t", "u", "v", "nowhere", "x" * 300], self.random.randint(1, 3)))

    def join(self) -> None:
        group = self.group()
        known = [member for of, member in self.members if of == group]
        member = self.random.choice(["", *known])
        instance = self.random.choice([None, None, "i1", "i2"])
        member = "" if instance else member
        more = {"version": self.random.choice([3, 9])}
        if instance and more["version"] > 4:
            more["instance"] = instance
        request_id = self.coordinator.join(member, group=group, topics=self.topics(), client_id="ü" * 9, **more)
        self.request_ids.append((group, request_id))

    def hear(self) -> None:
        for group, request_id in self.request_ids:
            reply = self.coordinator.answer(request_id)
            if reply is not None and reply.member_id:
                self.members.append((group, reply.member_id))
        self.request_ids = [each for each in self.request_ids if self.coordinator.answer(each[1]) is None]
        self.members = self.members[-8:]

    def sync(self) -> None:
        for group, member in self.members:
            known = self.coordinator.shard.groups.get(group)
            if isinstance(known, ClassicGroup):
                given = {each: b"x" * self.random.randint(0, 400) for each in known.members}
                self.coordinator.sync(member, known.generation, given, group=group)

    def leave(self) -> None:
        if self.members:
            group, member = self.members.pop(self.random.randrange(len(self.members)))
            kind = m.LeaveGroupRequest.MemberIdentity
            self.coordinator.ask(m.LeaveGroupRequest(group_id=group, members=[kind(member_id=member)]), 5)

    def beat(self) -> None:
        group, member = self.random.choice("bc"), self.random.choice(["m1", "m2", "m3"])
        known = self.coordinator.shard.groups.get(group)
        epoch = 0
        if isinstance(known, ConsumerGroup) and member in known.state.members:
            epoch = self.random.choice([0, known.state.members[member].epoch, -1])
        regex = self.random.choice([None, None, "t.*", "[uv]", ""])
        beat(self.coordinator, member, epoch, group=group, topics=list(self.topics()), subscribed_topic_regex=regex)

    def commit(self) -> None:
        metadata = "m" * self.random.randint(0, 50)
        topic, partition = self.random.choice("tuv"), self.random.randrange(8)
        self.coordinator.commit(1, group=self.group(), topic=topic, partition=partition, metadata=metadata)

    def commit_in_transaction(self) -> None:
        producer, topic = self.random.choice([7, 8]), self.random.choice("tuv")
        self.coordinator.commit_in_transaction(1, producer, group=self.group(), topic=topic)

    def commit_much(self) -> None:
        """Partitions are named more than once; whatever is in the request, it does not pass the limit."""
        coordinator = self.coordinator
        most = max(coordinator.bytes_max, coordinator.shard.memory.used_bytes)
        said = [
            (self.random.randrange(4), "m" * self.random.choice([0, 0, 50, 900]))
            for _ in range(self.random.randint(1, 12))
        ]
        commit_all(coordinator, said, self.random.choice([None, 7, 8]), self.group(), self.random.choice("tuv"))
        assert coordinator.shard.memory.used_bytes <= most

    def end_transaction(self) -> None:
        self.coordinator.marker(self.random.choice([7, 8]), 0, self.random.random() < 0.5)

    def delete_group(self) -> None:
        self.coordinator.ask(m.DeleteGroupsRequest(groups_names=[self.group()]), 2)

    def forget_topic(self) -> None:
        coordinator = self.coordinator
        coordinator.take(coordinator.shard.on_topics_deleted([self.random.choice("tuv")], coordinator.now_ms))

    def look_at_topics(self) -> None:
        coordinator = self.coordinator
        coordinator.take(coordinator.shard.on_topics_changed(["t", "u"], coordinator.now_ms))

    def pass_time(self) -> None:
        self.coordinator.pass_time(self.random.choice([10, 3000, 12_000, 70_000, 700_000]))

    def squeeze(self) -> None:
        used_bytes = self.coordinator.shard.memory.used_bytes
        self.coordinator.bytes_max = self.random.choice([price.ENDLESS, used_bytes, used_bytes + 3000])

    def fail_over(self) -> None:
        if self.random.random() < 0.3:
            self.coordinator.fail_over()

    def step(self) -> str:
        often = (self.join, self.join, self.hear, self.sync, self.beat, self.beat, self.commit, self.pass_time)
        seldom = (
            self.leave,
            self.commit_in_transaction,
            self.commit_much,
            self.end_transaction,
            self.delete_group,
            self.forget_topic,
            self.look_at_topics,
            self.squeeze,
            self.fail_over,
        )
        what: Callable[[], None] = self.random.choice(often * 2 + seldom)
        what()
        return what.__name__


@pytest.mark.parametrize("seed", seeds(range(12)))
def test_whatever_comes_and_goes_the_count_is_that_of_what_is_there(
    seed: int, make_coordinator: Callable[..., Any]
) -> None:
    coordinator = make_coordinator(offsets_retention_ms=600_000, offsets_retention_check_interval_ms=60_000)
    simulation = Simulation(seed, coordinator)
    done: list[str] = []
    for _ in range(250):
        done.append(simulation.step())
        assert coordinator.shard.memory.used_bytes == recounted(coordinator.shard), (seed, done[-5:])
        for group in coordinator.shard.groups.values():
            if isinstance(group, ClassicGroup):
                said = sum(each.record_bytes for each in group.members.values())
                assert group.record_bytes == said, (seed, done[-5:])
        kept = (each for group in coordinator.shard.groups.values() for each in group.history.rebalances)
        assert coordinator.shard.memory.history_bytes == sum(each.kept_bytes for each in kept), (seed, done[-5:])
    # Everybody goes, and so does everything.
    coordinator.bytes_max = price.ENDLESS
    coordinator.marker(7, 0, False)
    coordinator.marker(8, 0, False)
    coordinator.pass_time(3_000_000)
    for name in "abc":
        coordinator.ask(m.DeleteGroupsRequest(groups_names=[name]), 2)
    assert coordinator.shard.groups == {}
    assert (coordinator.shard.memory.used_bytes, coordinator.shard.memory.history_bytes) == (0, 0)


def test_names_in_other_scripts_are_not_cheaper_than_they_are() -> None:
    assert price.text_bytes("ü" * 10) > price.text_bytes("u" * 10) > price.text_bytes("") > price.text_bytes(None)
