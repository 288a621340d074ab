"""Which group requests take the short path. `test_short_paths.py` compares its responses with the general path's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m

TOPICS = ("pond", "lake")
KEYS = (8, 12, 68)
CALLERS = 2
SESSION_MS = 30_000


class GroupBroker:
    """A broker whose members' requests may or may not take the short path."""

    def __init__(self, make_server: Callable[..., Any], *, is_short: bool, **texts: str) -> None:
        self.server = make_server({"offset.metadata.max.bytes": "20", **texts})
        self.taken = dict.fromkeys(KEYS, 0)
        for name in TOPICS:
            self.server.create(name, 2)
        self.callers = [self.server.connect() for _ in range(CALLERS)]
        self.heard: list[list[bytes]] = [[] for _ in range(CALLERS)]
        self.callers[0].ask(m.FindCoordinatorRequest(key="red"), 2, within_ms=5_000)
        self.server.run(1_000)
        for key in KEYS:
            entry = self.server.broker.dispatcher._entries[key]
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
        self.callers[who] = self.server.connect()

    def group(self, group_id: str) -> Any:
        home = self.server.broker.groups.active_shard_host(group_id)
        return None if home is None else home.shard.groups.get(group_id)


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


JOINS: dict[str, Any] = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": ["pond"], "topic_partitions": []}


@pytest.fixture
def target(make_server: Callable[..., Any]) -> GroupBroker:
    return GroupBroker(make_server, is_short=True)


def joined(target: GroupBroker, group_id: str) -> tuple[str, str, int]:
    caller = target.callers[0]
    reply = caller.ask(join(group_id, ""), 3, within_ms=10_000)
    caller.ask(sync(group_id, reply.member_id, reply.generation_id), 3)
    return group_id, reply.member_id, reply.generation_id


def test_members_of_stable_groups_take_the_short_path(target: GroupBroker) -> None:
    member = joined(target, "red")
    caller = target.callers[0]
    for version in (3, 4):
        assert caller.ask(beat(*member), version).error_code == 0
    for version in (7, 8, 9):
        reply = caller.ask(commit(*member, offset=version), version)
        assert reply.topics[0].partitions[0].error_code == 0
    began = caller.ask(consumer_beat("green", "first", 0, **JOINS), 1)
    for version in (0, 1):
        reply = caller.ask(consumer_beat("green", "first", began.member_epoch), version)
        assert (reply.error_code, reply.member_epoch, reply.assignment) == (0, began.member_epoch, None)
    assert target.taken == {8: 3, 12: 2, 68: 2}
    assert target.group("red").state_name == "Stable"


def test_a_heartbeat_keeps_its_member_and_silence_does_not(target: GroupBroker) -> None:
    member = joined(target, "red")
    caller = target.callers[0]
    caller.ask(consumer_beat("green", "first", 0, **JOINS), 1)
    for _ in range(8):
        target.server.run(SESSION_MS - 2_000)
        assert caller.ask(beat(*member), 4).error_code == 0
        assert caller.ask(consumer_beat("green", "first", 1), 1).error_code == 0
    assert target.taken[12] == target.taken[68] == 8
    target.server.run(60_000)
    assert caller.ask(beat(*member), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert caller.ask(consumer_beat("green", "first", 1), 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert target.taken[12] == target.taken[68] == 8


def test_a_commit_and_a_heartbeat_after_it_are_answered_once_it_is_synced(target: GroupBroker) -> None:
    member = joined(target, "red")
    caller = target.callers[0]
    home = target.server.broker.groups.shard_host_of("red")
    syncs = target.server.syncs(home.partition.name.folder)
    caller.send(commit(*member, offset=42), 8)
    assert caller.replies() == []
    other = target.callers[1]
    other.send(beat(*member), 4)
    # Its response depends on records that are not committed yet.
    assert other.replies() == []
    target.server.run(100)
    assert len(caller.replies()) == len(other.replies()) == 1
    assert target.server.syncs(home.partition.name.folder) > syncs
    assert target.taken == {8: 1, 12: 0, 68: 0}


def test_both_paths_refuse_a_commit_on_a_full_disk(make_server: Callable[..., Any]) -> None:
    frames = []
    for is_short in (True, False):
        target = GroupBroker(make_server, is_short=is_short)
        member = joined(target, "red")
        target.server.disk.fill()
        target.callers[0].send(commit(*member), 8)
        target.server.run(100)
        frames.append(target.hear())
        assert target.taken[8] == is_short
    assert frames[0] == frames[1]
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE.to_bytes(2, "big") in frames[0][0][-1]


def test_a_commit_beyond_the_memory_limit_is_refused(make_server: Callable[..., Any]) -> None:
    target = GroupBroker(make_server, is_short=True, **{"groups.max.bytes": "3000"})
    member = joined(target, "red")
    codes = []
    for partition in (0, 1, 0, 1):
        for topic in TOPICS:
            reply = target.callers[0].ask(commit(*member, topic=topic, partition=partition), 8)
            codes.append(reply.topics[0].partitions[0].error_code)
    assert set(codes) == {0, ErrorCode.POLICY_VIOLATION}
    assert target.taken[8] == codes.count(0)


def test_a_commit_of_a_closed_connection_counts(target: GroupBroker) -> None:
    member = joined(target, "red")
    target.callers[0].send(commit(*member, offset=42), 8)
    target.hang_up(0)
    target.server.run(100)
    shard = target.server.broker.groups.shard_host_of("red").shard
    assert shard.offsets.by_group["red"]["pond"][0].offset == 42
    assert sum(target.server.broker.requests.times[8].counts) == 0


def test_with_any_quota_set_every_request_is_checked(target: GroupBroker) -> None:
    member = joined(target, "red")
    caller = target.callers[0]
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="request_percentage", value=1e6)])
    caller.ask(kind(entries=[entry]), 1)
    assert caller.ask(beat(*member), 4).error_code == 0
    assert caller.ask(commit(*member), 8).topics[0].partitions[0].error_code == 0
    assert not any(target.taken.values())
