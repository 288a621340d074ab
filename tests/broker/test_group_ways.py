"""The short and the general path of frequent group requests give the same responses, records, timers and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.support.seeds import seeds

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.wire import messages as m

STEPS = 400
CLASSIC, NEW = ("red", "blue"), ("green", "grey")
TOPICS = ("pond", "lake")
KEYS = (8, 12, 68)
CALLERS = 4
SESSION_MS = 30_000


class Stage:
    """A broker whose members' requests may or may not take the short path."""

    def __init__(self, make_desk: Callable[..., Any], *, is_short: bool, **texts: str) -> None:
        self.desk = make_desk({"offset.metadata.max.bytes": "20", **texts})
        self.taken = dict.fromkeys(KEYS, 0)
        for name in TOPICS:
            self.desk.create(name, 2)
        self.callers = [self.desk.connect() for _ in range(CALLERS)]
        self.heard: list[list[bytes]] = [[] for _ in range(CALLERS)]
        self.callers[0].ask(m.FindCoordinatorRequest(key="red"), 2, within_ms=5_000)
        self.desk.run(1_000)
        for key in KEYS:
            entry = self.desk.broker.dispatcher._entries[key]
            entry.api = replace(entry.api, short=self._counted(key, entry.api.short) if is_short else None)

    def _counted(self, key: int, short: Callable[..., bool]) -> Callable[..., bool]:
        def counted(*args: Any) -> bool:
            is_taken = short(*args)
            self.taken[key] += is_taken
            return is_taken

        return counted

    def hear(self) -> list[list[bytes]]:
        for each, heard in zip(self.callers, self.heard, strict=True):
            heard += each.link.frames()
        return self.heard

    def hang_up(self, who: int) -> None:
        self.hear()
        self.callers[who].link.end()
        self.callers[who] = self.desk.connect()

    def group(self, group_id: str) -> Any:
        home = self.desk.broker.groups.active_shard_host(group_id)
        return None if home is None else home.shard.groups.get(group_id)

    def traces(self) -> dict[str, Any]:
        """All the state left behind, on disk and in memory."""
        broker = self.desk.broker
        found: dict[str, Any] = {"groups": {}, "offsets": {}, "clocks": {}}
        for home in broker.groups.shard_hosts():
            shard, at = home.shard, home.partition.name.partition
            found["offsets"] |= shard.offsets.by_group
            found["clocks"][at] = (shard.shared.timers._deadlines, home._timer_ms, home._timer is not None)
            for group_id, group in shard.groups.items():
                found["groups"][group_id] = (group.state_name, group.member_count, group.history.rebalances)
        requests = broker.requests
        found["requests"] = [
            (requests.received[key], requests.times[key].counts, requests.times[key].sum_us) for key in KEYS
        ]
        found["errors"] = requests.errors
        found["memory"] = [shard.memory.used_bytes for shard in broker.groups.shards()]
        found["ends"] = {str(each.name): each.log.end_offset for each in broker.partitions}
        found["files"] = {
            path: data for path, data in self.desk.disk.contents().items() if "__consumer_offsets" in path
        }
        return found


def beat(group_id: str, member_id: str, generation: int, **fields: Any) -> m.Message:
    return m.HeartbeatRequest(group_id=group_id, member_id=member_id, generation_id=generation, **fields)


def commit(
    group_id: str,
    member_id: str,
    generation: int,
    *,
    topic: str = "pond",
    partition: int = 0,
    offset: int = 3,
    metadata: str | None = "",
    **fields: Any,
) -> m.Message:
    kind = m.OffsetCommitRequest
    committed = kind.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=[committed])]
    return kind(
        group_id=group_id, member_id=member_id, generation_id_or_member_epoch=generation, topics=topics, **fields
    )


def join(group_id: str, member_id: str) -> m.Message:
    kind = m.JoinGroupRequest
    return kind(
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def sync(group_id: str, member_id: str, generation: int) -> m.Message:
    return m.SyncGroupRequest(group_id=group_id, member_id=member_id, generation_id=generation, assignments=[])


def consumer_beat(group_id: str, member_id: str, epoch: int, **fields: Any) -> m.Message:
    return m.ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **fields)


JOINS: dict[str, Any] = {
    "rebalance_timeout_ms": 5_000,
    "subscribed_topic_names": ["pond"],
    "topic_partitions": [],
}


class Author:
    """Generates the same requests for every stage. It reads group membership from the first stage."""

    def __init__(self, random: Random, stage: Stage) -> None:
        self._random = random
        self._stage = stage

    def request(self) -> tuple[m.Message, int]:
        random = self._random
        kinds = {
            "beat": 20,
            "consumer beat": 20,
            "commit": 20,
            "join": 2,
            "sync": 5,
            "leave": 1,
            "consumer join": 1,
            "own": 3,
        }
        match random.choices([*kinds], [*kinds.values()])[0]:
            case "beat":
                instance_id = random.choices((None, "i"), (20, 1))[0]
                version = random.choice((3, 4))
                return beat(*self._member(*CLASSIC, *CLASSIC, *NEW), group_instance_id=instance_id), version
            case "consumer beat":
                return consumer_beat(*self._member(*NEW, *NEW, *CLASSIC)), random.choice((0, 1))
            case "own":
                group_id, member_id, epoch = self._member(*NEW)
                group = self._stage.group(group_id)
                known = group.state.members.get(member_id) if isinstance(group, ConsumerGroup) else None
                owned: dict[Any, list[int]] = {}
                for each in () if known is None else known.current.assigned:
                    owned.setdefault(each.topic_id, []).append(each.partition)
                kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
                parts = [kind(topic_id=topic_id, partitions=numbers) for topic_id, numbers in owned.items()]
                return consumer_beat(group_id, member_id, epoch, topic_partitions=parts), 1
            case "commit":
                group_id, member_id, generation = self._member(*CLASSIC, *NEW)
                if random.random() < 0.1:
                    member_id, generation = "", -1
                return (
                    commit(
                        group_id,
                        member_id,
                        generation,
                        topic=random.choices((*TOPICS, "sea"), (9, 9, 1))[0],
                        partition=random.choices((0, 1, 7), (9, 9, 1))[0],
                        offset=random.randrange(1_000),
                        metadata=random.choices((None, "", "note", "n" * 21, "é"), (6, 9, 3, 1, 1))[0],
                    ),
                    random.choices((6, 7, 8, 9), (1, 3, 9, 9))[0],
                )
            case "join":
                group_id, member_id, _ = self._member(*CLASSIC, *NEW)
                return join(group_id, random.choices((member_id, ""), (1, 3))[0]), 3
            case "sync":
                return sync(*self._member(*CLASSIC)), 3
            case "leave":
                group_id, member_id, _ = self._member(*CLASSIC)
                return m.LeaveGroupRequest(group_id=group_id, member_id=member_id), 2
            case _:
                group_id = random.choice(NEW)
                return consumer_beat(group_id, random.choice(("first", "second")), 0, **JOINS), 1

    def _member(self, *groups: str) -> tuple[str, str, int]:
        """A group, usually one of its members, and usually that member's current generation or epoch."""
        random = self._random
        group_id = random.choice(groups)
        group = self._stage.group(group_id)
        if group is None:
            return group_id, random.choice(("", "nobody")), random.choice((-1, 0, 1))
        members = group.state.members if isinstance(group, ConsumerGroup) else group.members
        member_id = random.choices((random.choice([*members, "nobody"]), "nobody"), (20, 1))[0]
        known = members.get(member_id)
        epoch = 0 if known is None or not isinstance(group, ConsumerGroup) else known.epoch
        generation = getattr(group, "generation", epoch)
        return group_id, member_id, generation + random.choices((0, 1, -1), (30, 1, 1))[0]


WEIGHTS = {"ask": 60, "run": 30, "hang up": 1, "fill": 1, "make room": 10, "delete": 1}


@pytest.mark.parametrize("flush_ack", ["auto", "never"])
@pytest.mark.parametrize("seed", seeds(range(10)))
def test_both_ways_answer_and_write_the_same(make_desk: Callable[..., Any], seed: int, flush_ack: str) -> None:
    # Every third run has less memory for groups than it would use.
    texts = {"groups.max.bytes": "12000"} if seed % 3 == 0 else {}
    stages = [Stage(make_desk, is_short=is_short, **texts) for is_short in (True, False)]
    for stage in stages:
        for partition in stage.desk.broker.partitions:
            # As if the offsets topic were configured this way.
            partition.acknowledges_after_sync = flush_ack != "never"
        for group_id in CLASSIC:
            joined(stage, group_id)
        for group_id in NEW:
            stage.callers[0].ask(consumer_beat(group_id, "first", 0, **JOINS), 1)
    author, random = Author(Random(seed), stages[0]), Random(seed)
    for _ in range(STEPS):
        match random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]:
            case "ask":
                who, (request, version) = random.randrange(CALLERS), author.request()
                for stage in stages:
                    stage.callers[who].send(request, version)
            case "run":
                lasts_ms = random.choices((0, 1, 5, 60, 4_000), (6, 6, 6, 12, 1))[0]
                for stage in stages:
                    stage.desk.run(lasts_ms)
            case "hang up":
                who = random.randrange(CALLERS)
                for stage in stages:
                    stage.hang_up(who)
            case "fill":
                for stage in stages:
                    stage.desk.disk.fill()
            case "make room":
                for stage in stages:
                    stage.desk.disk.make_room()
            case "delete":
                for stage in stages:
                    stage.desk.disk.make_room()
                    if "lake" in stage.desk.broker.image.topics:
                        stage.desk.delete("lake")
                    else:
                        stage.desk.create("lake", 2)
        short, general = stages
        assert short.hear() == general.hear()
    for stage in stages:
        stage.desk.disk.make_room()
        stage.desk.run(2_000)
    assert short.hear() == general.hear()
    ours, theirs = short.traces(), general.traces()
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert all(short.taken[key] > 2 for key in KEYS), short.taken
    assert not any(general.taken.values())


@pytest.fixture
def stage(make_desk: Callable[..., Any]) -> Stage:
    return Stage(make_desk, is_short=True)


def joined(stage: Stage, group_id: str) -> tuple[str, str, int]:
    caller = stage.callers[0]
    reply = caller.ask(join(group_id, ""), 3, within_ms=10_000)
    caller.ask(sync(group_id, reply.member_id, reply.generation_id), 3)
    return group_id, reply.member_id, reply.generation_id


def test_the_short_way_is_taken_by_members_of_groups_in_which_nothing_happens(stage: Stage) -> None:
    member = joined(stage, "red")
    caller = stage.callers[0]
    for version in (3, 4):
        assert caller.ask(beat(*member), version).error_code == 0
    for version in (7, 8, 9):
        reply = caller.ask(commit(*member, offset=version), version)
        assert reply.topics[0].partitions[0].error_code == 0
    began = caller.ask(consumer_beat("green", "first", 0, **JOINS), 1)
    for version in (0, 1):
        reply = caller.ask(consumer_beat("green", "first", began.member_epoch), version)
        assert (reply.error_code, reply.member_epoch, reply.assignment) == (0, began.member_epoch, None)
    assert stage.taken == {8: 3, 12: 2, 68: 2}
    assert stage.group("red").state_name == "Stable"


def test_a_beat_keeps_its_member_and_silence_does_not(stage: Stage) -> None:
    member = joined(stage, "red")
    caller = stage.callers[0]
    caller.ask(consumer_beat("green", "first", 0, **JOINS), 1)
    for _ in range(8):
        stage.desk.run(SESSION_MS - 2_000)
        assert caller.ask(beat(*member), 4).error_code == 0
        assert caller.ask(consumer_beat("green", "first", 1), 1).error_code == 0
    assert stage.taken[12] == stage.taken[68] == 8
    stage.desk.run(60_000)
    assert caller.ask(beat(*member), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.ask(consumer_beat("green", "first", 1), 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.taken[12] == stage.taken[68] == 8


def test_a_commit_is_answered_once_it_is_on_the_disk_and_a_beat_after_it_not_before(stage: Stage) -> None:
    member = joined(stage, "red")
    caller = stage.callers[0]
    home = stage.desk.broker.groups.shard_host_of("red")
    syncs = stage.desk.syncs(home.partition.name.folder)
    caller.send(commit(*member, offset=42), 8)
    assert caller.replies() == []
    other = stage.callers[1]
    other.send(beat(*member), 4)
    # Its response depends on records that are not committed yet.
    assert other.replies() == []
    stage.desk.run(100)
    assert len(caller.replies()) == len(other.replies()) == 1
    assert stage.desk.syncs(home.partition.name.folder) > syncs
    assert stage.taken == {8: 1, 12: 0, 68: 0}


def test_a_commit_that_a_full_disk_refuses_is_refused_as_ever(make_desk: Callable[..., Any]) -> None:
    frames = []
    for is_short in (True, False):
        stage = Stage(make_desk, is_short=is_short)
        member = joined(stage, "red")
        stage.desk.disk.fill()
        stage.callers[0].send(commit(*member), 8)
        stage.desk.run(100)
        frames.append(stage.hear())
        assert stage.taken[8] == is_short
    assert frames[0] == frames[1]
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE.to_bytes(2, "big") in frames[0][0][-1]


def test_a_commit_without_room_is_refused_as_ever(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, is_short=True, **{"groups.max.bytes": "3000"})
    member = joined(stage, "red")
    codes = []
    for partition in (0, 1, 0, 1):
        for topic in TOPICS:
            reply = stage.callers[0].ask(commit(*member, topic=topic, partition=partition), 8)
            codes.append(reply.topics[0].partitions[0].error_code)
    assert set(codes) == {0, ErrorCode.POLICY_VIOLATION}
    assert stage.taken[8] == codes.count(0)


def test_a_commit_whose_client_is_gone_counts_all_the_same(stage: Stage) -> None:
    member = joined(stage, "red")
    stage.callers[0].send(commit(*member, offset=42), 8)
    stage.hang_up(0)
    stage.desk.run(100)
    shard = stage.desk.broker.groups.shard_host_of("red").shard
    assert shard.offsets.by_group["red"]["pond"][0].offset == 42
    assert sum(stage.desk.broker.requests.times[8].counts) == 0


def test_where_somebody_has_a_quota_everybody_is_asked_for_it(stage: Stage) -> None:
    member = joined(stage, "red")
    caller = stage.callers[0]
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="request_percentage", value=1e6)])
    caller.ask(kind(entries=[entry]), 1)
    assert caller.ask(beat(*member), 4).error_code == 0
    assert caller.ask(commit(*member), 8).topics[0].partitions[0].error_code == 0
    assert not any(stage.taken.values())
