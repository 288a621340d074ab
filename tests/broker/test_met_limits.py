"""Default limits: a request over a limit is refused, existing state is unaffected, and the error names the limit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import NO_TOPIC_ID
from millpond.config.node import GROUP_CONSUMER_MAX_SIZE, GROUP_MAX_SIZE, MAX_CONNECTIONS, node_settings
from millpond.config.quota import SECTIONS
from millpond.wire import messages as m

POLICY = ErrorCode.POLICY_VIOLATION
AWAY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


class LimitedNode:
    def __init__(self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview], **texts: str) -> None:
        small = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
        self.server = make_server(small | {name.replace("_", "."): text for name, text in texts.items()})
        self.server.create("pond", 5)
        self.client = self.server.connect()
        self.batch = make_batch

    def ask(self, request: m.Message, version: int) -> Any:
        return self.client.ask(request, version, within_ms=20_000)

    def commit(self, group: str, offset: int = 1) -> ErrorCode:
        """Commit from a consumer that is in no group."""
        partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="pond", partitions=[partition])
        request = m.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        for _ in range(50):
            code = ErrorCode(self.ask(request, 8).topics[0].partitions[0].error_code)
            if code not in AWAY:
                return code
            self.find(group, 0)
            self.server.run(100)
        raise AssertionError("no coordinator")

    def find(self, key: str, kind: int) -> None:
        self.ask(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)

    def join(self, group: str, metadata: bytes = b"m", version: int = 6) -> ErrorCode:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
        request = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        return ErrorCode(self.ask(request, version).error_code)

    def heartbeat(self, group: str, topics: list[str] | None = None, member: str = "M" * 22) -> Any:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=topics or ["pond"],
            topic_partitions=[],
        )
        return self.ask(request, 1)

    def begin(self, transactional_id: str) -> ErrorCode:
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=10_000, producer_id=-1, producer_epoch=-1
        )
        for _ in range(50):
            code = ErrorCode(self.ask(request, 4).error_code)
            if code not in AWAY:
                return code
            self.find(transactional_id, 1)
            self.server.run(100)
        raise AssertionError("no coordinator")

    def produce(self, producer_id: int, sequence: int = 0) -> Any:
        records = self.batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        partition = m.ProduceRequest.PartitionProduceData(index=0, records=records)
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[partition])
        reply = self.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
        return reply.responses[0].partition_responses[0]

    def fetch(self, partitions: int, session_id: int = 0, epoch: int = 0, first: int = 0) -> Any:
        wanted = [
            m.FetchRequest.FetchPartition(
                partition=index, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1
            )
            for index in range(first, first + partitions)
        ]
        topic = m.FetchRequest.FetchTopic(topic="pond", topic_id=NO_TOPIC_ID, partitions=wanted)
        request = m.FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1, session_id=session_id, session_epoch=epoch, topics=[topic]
        )
        return self.ask(request, 12)

    def journal(self) -> str:
        return "\n".join(map(str, self.server.node.journal_lines))


@pytest.fixture
def make_host(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Callable[..., LimitedNode]:
    return lambda **texts: LimitedNode(make_server, make_batch, **texts)


def test_there_are_only_so_many_groups_however_they_come(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(max_groups="2")
    assert host.commit("a") is ErrorCode.NONE
    assert host.join("b") is ErrorCode.MEMBER_ID_REQUIRED
    assert host.commit("c") is POLICY
    assert host.join("d") is POLICY
    refused = host.heartbeat("e")
    assert refused.error_code == POLICY
    assert "max.groups=2" in refused.error_message
    assert "max.groups=2" in host.journal()
    assert host.server.broker.limits.counts["max.groups"] == 3
    assert host.commit("a", 2) is ErrorCode.NONE, "those that are there go on"
    assert sum(len(home.shard.groups) for home in host.server.broker.groups.shard_hosts()) == 2
    host.ask(m.DeleteGroupsRequest(groups_names=["a"]), 2)
    assert host.commit("c") is ErrorCode.NONE, "there is room again"


def test_a_member_may_say_only_so_much_of_itself(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(group_member_max_bytes="2000")
    assert host.commit("a") is ErrorCode.NONE
    assert host.join("b", b"x" * 2000) is POLICY
    assert host.join("b", b"x" * 1000) is ErrorCode.MEMBER_ID_REQUIRED
    refused = host.heartbeat("c", ["t" * 200] * 11)
    assert refused.error_code == POLICY
    assert "group.member.max.bytes=2000" in refused.error_message
    assert host.heartbeat("c", ["t" * 200] * 9).error_code == ErrorCode.NONE
    assert host.server.broker.limits.counts["group.member.max.bytes"] == 2
    assert "group.member.max.bytes=2000" in host.journal()


def test_all_members_of_a_classic_group_may_say_only_so_much(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(group_classic_max_bytes="5000")
    assert host.commit("a") is ErrorCode.NONE
    assert host.join("b", b"x" * 4000, version=3) is ErrorCode.NONE
    assert host.join("b", b"x" * 4000, version=3) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert host.join("c", b"x" * 4000, version=3) is ErrorCode.NONE, "each group has as much"
    assert host.server.broker.limits.counts["group.classic.max.bytes"] == 1
    assert "group.classic.max.bytes=5000" in host.journal()


def test_all_groups_together_keep_only_so_much(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(groups_max_bytes="100000")
    assert host.commit("a") is ErrorCode.NONE
    assert host.join("b", b"x" * 60_000, version=3) is ErrorCode.NONE
    assert host.join("c", b"x" * 60_000, version=3) is POLICY
    assert host.join("c", b"x" * 6_000, version=3) is ErrorCode.NONE
    refused = host.heartbeat("d", [f"{each:0200}" for each in range(200)])
    assert refused.error_code == POLICY
    assert "groups.max.bytes=100000" in refused.error_message
    assert host.heartbeat("d").error_code == ErrorCode.NONE
    assert "groups.max.bytes=100000" in host.journal()
    assert host.server.broker.limits.counts["groups.max.bytes"] == 2
    used = sum(home.shard.memory.used_bytes for home in host.server.broker.groups.shard_hosts())
    assert 66_000 < used <= 100_000
    assert len({home.partition.name for home in host.server.broker.groups.shard_hosts() if home.shard.groups}) > 1
    host.server.run(60_000)
    assert host.join("e", b"x" * 80_000, version=3) is ErrorCode.NONE, "those who were silent have gone"


@pytest.mark.parametrize("authorizer", ["", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"])
def test_of_a_request_that_waits_for_others_only_little_is_kept(
    make_host: Callable[..., LimitedNode], authorizer: str
) -> None:
    """A follower may send any assignments: they are ignored, and its request waits as long as the leader's."""
    host = make_host(
        group_initial_rebalance_delay_ms="3000",
        authorizer_class_name=authorizer,
        allow_everyone_if_no_acl_found="true",
    )
    assert host.commit("a") is ErrorCode.NONE
    others = [host.server.connect() for _ in range(2)]
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    request = m.JoinGroupRequest(
        group_id="a",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    for each in others:
        each.send(request, 3)
    host.server.run(10_000)
    replies = [reply for each in others for reply in each.replies()]
    assert [each.error_code for each in replies] == [0, 0]
    follower = next(index for index, each in enumerate(replies) if each.leader != each.member_id)
    kind = m.SyncGroupRequest.SyncGroupRequestAssignment
    sync = m.SyncGroupRequest(
        group_id="a",
        generation_id=replies[follower].generation_id,
        member_id=replies[follower].member_id,
        assignments=[kind(member_id="nobody", assignment=b"x" * 100_000)],
    )
    others[follower].send(sync, 3)
    assert host.server.broker.access.is_on == bool(authorizer)
    del sync
    host.server.run(100)
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, kind) and len(each.assignment) == 100_000] == []


def test_a_group_has_only_so_many_members(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(group_max_size="1", group_consumer_max_size="1")
    assert host.commit("a") is ErrorCode.NONE
    assert host.join("b", version=3) is ErrorCode.NONE
    assert host.join("b", version=3) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert host.heartbeat("c").error_code == ErrorCode.NONE
    refused = host.heartbeat("c", member="N" * 22)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "group.consumer.max.size=1" in refused.error_message
    told = host.journal()
    assert "group.max.size=1" in told
    assert "group.consumer.max.size=1" in told


def test_there_are_only_so_many_partitions(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(max_partitions_per_topic="10", max_partitions="12")

    def create(name: str, count: int) -> Any:
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        return host.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics[0]

    def grow(name: str, count: int) -> Any:
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        return host.ask(m.CreatePartitionsRequest(topics=[topic], timeout_ms=1000), 3).results[0]

    for refused, limit in (
        (create("wide", 11), "max.partitions.per.topic=10"),
        (create("more", 8), "max.partitions=12"),
        (grow("pond", 11), "max.partitions.per.topic=10"),
    ):
        assert refused.error_code == POLICY
        assert limit in refused.error_message
        assert limit in host.journal()
    counts = host.server.broker.limits.counts
    assert (counts["max.partitions.per.topic"], counts["max.partitions"]) == (2, 1)
    assert create("more", 7).error_code == ErrorCode.NONE


def test_there_are_only_so_many_transactional_ids(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(max_transactional_ids="2")
    assert [host.begin(each) for each in "abcd"] == [ErrorCode.NONE, ErrorCode.NONE, POLICY, POLICY]
    assert host.begin("a") is ErrorCode.NONE
    assert "max.transactional.ids=2" in host.journal()


def test_a_partition_remembers_only_so_many_producers(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(max_producers_per_partition="2")
    assert [host.produce(each).error_code for each in (1, 2)] == [ErrorCode.NONE] * 2
    refused = host.produce(3)
    assert refused.error_code == POLICY
    assert "max.producers.per.partition=2" in refused.error_message
    assert "max.producers.per.partition=2" in host.journal()
    assert host.produce(1, 1).error_code == ErrorCode.NONE
    assert host.produce(-1, -1).error_code == ErrorCode.NONE, "others need not be remembered"
    assert host.server.broker.partitions.get("pond", 0).log.end_offset == 4


def test_fetch_sessions_have_only_so_many_partitions_together(make_host: Callable[..., LimitedNode]) -> None:
    host = make_host(max_incremental_fetch_session_partitions="5")
    first, second = host.fetch(2), host.fetch(2)
    assert first.session_id
    assert second.session_id
    third = host.fetch(2)
    assert (third.session_id, third.error_code) == (0, ErrorCode.NONE)
    assert len(third.responses[0].partitions) == 2, "it is served all the same"
    assert "max.incremental.fetch.session.partitions=5" in host.journal()
    assert host.fetch(1, first.session_id, 1, first=2).error_code == ErrorCode.NONE
    grown = host.fetch(1, first.session_id, 2, first=3)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert host.fetch(2).session_id, "what it had is free"
    assert host.server.broker.limits.counts["max.incremental.fetch.session.partitions"] == 2


@pytest.mark.parametrize(("slots", "is_told"), [("1", True), ("0", False)])
def test_there_are_only_so_many_fetch_sessions(
    make_host: Callable[..., LimitedNode], slots: str, is_told: bool
) -> None:
    host = make_host(max_incremental_fetch_session_cache_slots=slots)
    sessions = [host.fetch(1).session_id, host.fetch(1).session_id]
    assert [bool(each) for each in sessions] == [is_told, False]
    assert ("max.incremental.fetch.session.cache.slots=1" in host.journal()) == is_told


def test_no_limit_is_without_end() -> None:
    """By default, except for cluster-wide rates, which an operator has to choose."""
    settings = node_settings({})
    endless = [
        setting.name
        for setting in (*SECTIONS["Quotas and limits"], GROUP_MAX_SIZE, GROUP_CONSUMER_MAX_SIZE, MAX_CONNECTIONS)
        if isinstance(settings[setting], int) and settings[setting] >= (1 << 31) - 1
    ]
    assert endless == ["max.connection.creation.rate"]
