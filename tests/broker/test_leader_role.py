"""A replicated partition on its leader: the test plays the followers' fetches, and clients connect over the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import view

from millpond.base.errors import ErrorCode
from millpond.broker.replication.partitions import Partition
from millpond.metadata.records import BrokerEndpoint, BrokerRegistrationChangeRecord, RegisterBrokerRecord
from millpond.wire import messages as m
from millpond.wire.batch import walk

ALL, LEADER = -1, 1
EPOCH = 5
FETCH_VERSION = 18


class LeaderNode:
    """Node 1 leads `pond`; the test plays nodes 2 and 3, which are registered."""

    def __init__(
        self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview], **configs: str
    ) -> None:
        self.server = make_server({})
        self.batch = make_batch
        self.pond: Partition = self.server.create("pond", **{"min_insync_replicas": "2", **configs})
        self.broker_epochs = {2: 102, 3: 103}
        for node_id, epoch in self.broker_epochs.items():
            self.register(node_id, epoch)
        self.lead()
        self.producer, self.reader = self.server.connect(), self.server.connect()
        self.followers = {node_id: self.server.connect() for node_id in self.broker_epochs}

    def register(self, node_id: int, epoch: int) -> None:
        end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9000 + node_id),)
        self.server.broker.image.replay(
            RegisterBrokerRecord(node_id, UUID(int=epoch), epoch, end_points, fenced=False)
        )

    def lead(self, isr: str = "123", *, epoch: int = EPOCH, partition_epoch: int = 10, leader: int = 1) -> None:
        self.pond.apply_metadata(view(leader, epoch, partition_epoch, "123", isr))

    # Writing.

    def produce(self, value: bytes = b"v", *, acks: int = ALL, timeout_ms: int = 1000, **fields: Any) -> None:
        kind = m.ProduceRequest
        data = kind.PartitionProduceData(index=0, records=self.batch(value, **fields))
        topic = kind.TopicProduceData(name="pond", partition_data=[data])
        self.producer.send(kind(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]), 12)

    def acknowledged(self) -> list[str | int]:
        """For each produce request that was answered, its offset or the name of the error."""
        parts = [reply.responses[0].partition_responses[0] for reply in self.producer.replies()]
        return [ErrorCode(part.error_code).name if part.error_code else part.base_offset for part in parts]

    # Following.

    def fetch(
        self,
        node_id: int,
        offset: int,
        *,
        last_epoch: int = -1,
        epoch: int = EPOCH,
        broker_epoch: int | None = None,
        start: int = 0,
        wait_ms: int = 500,
    ) -> None:
        kind = m.FetchRequest
        partition = kind.FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
            log_start_offset=start,
        )
        known = self.broker_epochs.get(node_id, 1) if broker_epoch is None else broker_epoch
        request = kind(
            replica_state=kind.ReplicaState(replica_id=node_id, replica_epoch=known),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=10 << 20,
            session_epoch=-1,
            topics=[kind.FetchTopic(topic_id=self.pond.topic_id, partitions=[partition])],
        )
        self.followers.get(node_id, self.reader).send(request, FETCH_VERSION)

    def fetched(self, node_id: int) -> list[Any]:
        """For each response: the base offsets of the batches, the name of the error, or the diverging offset."""
        return [answer_of(reply) for reply in self.followers.get(node_id, self.reader).replies()]

    def ask(self, node_id: int, offset: int, **fields: Any) -> Any:
        """Fetch without waiting."""
        self.fetch(node_id, offset, wait_ms=0, **fields)
        self.server.run(1)
        (answer,) = self.fetched(node_id)
        return answer

    # Reading.

    def read(self, offset: int, *, wait_ms: int = 0, isolation: int = 0) -> None:
        kind = m.FetchRequest
        partition = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = kind.FetchTopic(topic="pond", partitions=[partition])
        self.reader.send(
            kind(max_wait_ms=wait_ms, min_bytes=1, isolation_level=isolation, session_epoch=-1, topics=[topic]), 12
        )

    def seen(self) -> list[Any]:
        return [answer_of(reply) for reply in self.reader.replies()]

    def end(self, *, replica_id: int = -1, version: int = 7) -> Any:
        kind = m.ListOffsetsRequest
        partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = kind.ListOffsetsTopic(name="pond", partitions=[partition])
        reply = self.reader.ask(kind(replica_id=replica_id, isolation_level=0, topics=[topic]), version)
        part = reply.topics[0].partitions[0]
        return ErrorCode(part.error_code).name if part.error_code else part.offset


def answer_of(reply: Any) -> Any:
    (part,) = reply.responses[0].partitions
    if part.error_code:
        return ErrorCode(part.error_code).name
    if part.diverging_epoch.epoch >= 0:
        assert not part.records
        return ("parts", part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
    return [header.base_offset for _, header in walk(bytes(part.records))] if part.records else []


@pytest.fixture
def host(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> LeaderNode:
    return LeaderNode(make_server, make_batch)


# Committing.


def test_a_write_is_acknowledged_once_every_replica_in_sync_has_it(host: LeaderNode) -> None:
    host.produce()
    assert (host.ask(2, 0), host.ask(3, 0), host.acknowledged()) == ([0], [0], [])
    host.fetch(2, 1)
    host.server.run(5)
    assert (host.acknowledged(), host.pond.committed_offset) == ([], 0)
    host.fetch(3, 1)
    host.server.run(5)
    assert (host.acknowledged(), host.pond.committed_offset) == ([0], 1)


def test_acks_one_does_not_wait_for_replicas(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    assert (host.acknowledged(), host.pond.committed_offset) == ([0], 0)


def test_consumers_see_what_is_committed_and_are_woken_by_it(host: LeaderNode) -> None:
    host.read(0)
    host.read(0, wait_ms=400)
    host.produce()
    host.server.run(10)
    assert host.seen() == [[]], "one was answered at once, the other waits for more than the leader has"
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    assert host.seen() == [[0]]


@pytest.mark.parametrize("isolation", [0, 1])
def test_what_is_written_but_not_committed_is_empty_and_not_out_of_range(host: LeaderNode, isolation: int) -> None:
    host.produce()
    host.produce()
    host.read(1, isolation=isolation)
    host.server.run(1)
    assert host.seen() == [[]]
    host.read(3, isolation=isolation)
    host.server.run(1)
    assert host.seen() == ["OFFSET_OUT_OF_RANGE"]


def test_a_follower_that_waits_gets_all_that_was_written_in_one_turn(host: LeaderNode) -> None:
    host.fetch(2, 0)
    host.server.run(10)
    host.produce()
    host.produce()
    assert host.fetched(2) == []
    host.server.run(1)
    assert host.fetched(2) == [[0, 1]]


def test_a_retry_waits_for_the_same_records(host: LeaderNode) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    host.produce(**fields)
    host.produce(b"v", **fields)
    assert host.acknowledged() == []
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    assert (host.acknowledged(), host.pond.log.end_offset) == ([0, 0], 1)


# Too few replicas.


def test_with_too_few_in_sync_nothing_is_written(host: LeaderNode) -> None:
    host.lead("1", partition_epoch=11)
    host.produce()
    assert (host.acknowledged(), host.pond.log.end_offset) == (["NOT_ENOUGH_REPLICAS"], 0)
    host.produce(acks=LEADER)
    assert host.acknowledged() == [0]
    host.server.run(100)
    assert host.pond.committed_offset == 0, "below the least number nothing is committed"


def test_a_write_that_waits_when_replicas_leave_is_told_at_its_deadline(host: LeaderNode) -> None:
    host.produce(timeout_ms=100)
    host.lead("1", partition_epoch=11)
    host.server.run(50)
    assert host.acknowledged() == []
    host.server.run(60)
    assert host.acknowledged() == ["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]


def test_replicas_that_are_slow_time_a_write_out(host: LeaderNode) -> None:
    host.produce(timeout_ms=100)
    host.server.run(110)
    assert host.acknowledged() == ["REQUEST_TIMED_OUT"]
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    assert (host.pond.committed_offset, host.acknowledged()) == (1, [])


def test_a_replica_out_of_the_isr_delays_no_commit(host: LeaderNode) -> None:
    host.produce()
    host.fetch(2, 1)
    host.server.run(5)
    assert host.acknowledged() == []
    host.lead("12", partition_epoch=11)
    assert host.acknowledged() == [0]


# Losing the leadership.


def test_pending_requests_at_a_deposed_leader_name_the_new_one(host: LeaderNode) -> None:
    topic = host.server.broker.image.topics["pond"]
    host.produce()
    host.read(0, wait_ms=400)
    host.fetch(2, 1)
    host.server.run(5)
    host.lead(leader=2, epoch=EPOCH + 1, partition_epoch=11)
    topic.partitions[0] = topic.partitions[0].__class__(
        replicas=(1, 2, 3), isr=(1, 2, 3), leader=2, leader_epoch=EPOCH + 1, partition_epoch=11
    )
    assert host.acknowledged() == ["NOT_LEADER_OR_FOLLOWER"]
    assert host.seen() == ["NOT_LEADER_OR_FOLLOWER"]
    host.server.run(1)
    assert host.fetched(2) == ["FENCED_LEADER_EPOCH"]
    host.produce()
    (reply,) = host.producer.replies()
    (part,) = reply.responses[0].partition_responses
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, EPOCH + 1)
    host.read(0)
    (fetched,) = host.reader.replies()
    assert fetched.responses[0].partitions[0].current_leader.leader_id == 2
    assert host.pond.log.end_offset == 1


def test_what_was_known_to_be_committed_stays_so_in_the_next_role(host: LeaderNode) -> None:
    host.produce()
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    host.produce()
    host.lead(leader=2, epoch=EPOCH + 1, partition_epoch=11)
    assert host.pond.committed_offset == 1
    host.lead(epoch=EPOCH + 2, partition_epoch=12)
    assert (host.pond.committed_offset, host.pond.log.end_offset) == (1, 2)
    host.lead(leader=-1, epoch=EPOCH + 3, partition_epoch=13)
    assert (host.pond.committed_offset, host.pond.is_leader, host.pond.follower) == (1, False, None)


def test_old_metadata_is_no_news(host: LeaderNode) -> None:
    host.lead("12", partition_epoch=12)
    leader_role = host.pond.leader_role
    host.lead("123", partition_epoch=11)
    host.lead("123", partition_epoch=12)
    host.pond.apply_metadata(view(2, EPOCH - 1, 13, "123", "2"))
    assert host.pond.leader_role is leader_role is not None
    assert leader_role.view.isr == (1, 2)


# What a new leader does not know.


def test_a_new_leader_does_not_tell_the_end_before_it_knows_it(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    host.lead(epoch=EPOCH + 1, partition_epoch=11)
    assert (host.end(), host.end(replica_id=2)) == ("OFFSET_NOT_AVAILABLE", 1)
    assert host.end(version=4) == "LEADER_NOT_AVAILABLE"
    for node_id in host.followers:
        host.fetch(node_id, 1, epoch=EPOCH + 1)
    host.server.run(1)
    assert host.end() == 1
    host.produce(acks=LEADER)
    assert host.end() == 1, "records beyond it are neither committed nor visible"
    assert host.end(replica_id=-2) == 2, "who looks into the log sees all of it"


# What does not count.


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"epoch": 6}, "FENCED_LEADER_EPOCH"),
        ({"epoch": 8}, "UNKNOWN_LEADER_EPOCH"),
        ({"broker_epoch": 101}, "NOT_LEADER_OR_FOLLOWER"),
        ({"broker_epoch": -1}, "NOT_LEADER_OR_FOLLOWER"),
        ({"last_epoch": 8}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 4, "last_epoch": -1}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": -1}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 4, "last_epoch": 7}, ("parts", 7, 3)),
        ({"last_epoch": 6}, ("parts", 5, 1)),
        ({"last_epoch": 5}, ("parts", 5, 1)),
    ],
)
def test_only_a_fetch_of_our_own_history_counts(host: LeaderNode, fields: dict[str, int], answer: Any) -> None:
    host.produce(acks=LEADER)
    host.lead(epoch=7, partition_epoch=11)
    host.produce(acks=LEADER)
    host.produce(acks=LEADER)
    assert host.pond.log.epochs.entries == [(5, 0), (7, 1)]
    host.fetch(3, 3, epoch=7, last_epoch=7)
    assert host.ask(2, **{"offset": 3, "epoch": 7, "last_epoch": 7, **fields}) == answer
    assert host.pond.committed_offset == 0
    assert host.ask(2, 1, epoch=7, last_epoch=5) == [1, 2]
    assert host.pond.committed_offset == 1


def test_an_epoch_begins_before_anything_is_written_in_it(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    host.lead(epoch=7, partition_epoch=11)
    # The replica led in an epoch that no other replica has a record of, and must truncate it.
    assert host.ask(2, 1, epoch=7, last_epoch=6) == ("parts", 5, 1)
    assert host.ask(2, 1, epoch=7, last_epoch=7) == []


def test_a_stranger_is_no_replica(host: LeaderNode) -> None:
    host.register(4, 104)
    host.fetch(4, 0, broker_epoch=104)
    host.server.run(1)
    assert host.fetched(4) == ["UNKNOWN_LEADER_EPOCH"]


def test_a_partition_with_one_replica_has_no_followers(host: LeaderNode) -> None:
    host.pond.apply_metadata(view(1, EPOCH + 1, 11))
    assert host.ask(2, 0, epoch=EPOCH + 1) == "UNKNOWN_LEADER_EPOCH"


def test_a_question_that_waited_counts_once(host: LeaderNode) -> None:
    host.fetch(2, 0)
    host.fetch(3, 0)
    host.server.run(400)
    host.produce()
    host.server.run(200)
    assert host.fetched(2) == [[0]]
    assert (host.acknowledged(), host.pond.committed_offset) == ([], 0)


# The disk.


@pytest.mark.parametrize("flush_ack", ["auto", "always", "never"])
def test_which_of_the_leaders_own_records_count(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], flush_ack: str
) -> None:
    host = LeaderNode(make_server, make_batch, flush_ack=flush_ack, min_insync_replicas="1")
    host.produce()
    for node_id in host.followers:
        host.fetch(node_id, 1)
    at_once = host.acknowledged()
    host.server.run(50)
    assert (at_once, host.acknowledged()) == (([], [0]) if flush_ack == "always" else ([0], []))
    # With only the leader in the ISR, the disk is the only copy.
    host.lead("1", partition_epoch=11)
    host.produce()
    at_once = host.acknowledged()
    host.server.run(50)
    assert (at_once, host.acknowledged()) == (([1], []) if flush_ack == "never" else ([], [1]))


def test_a_shrunk_isr_commits_nothing_that_the_disk_does_not_have(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = LeaderNode(make_server, make_batch, min_insync_replicas="1")
    host.produce()
    host.lead("1", partition_epoch=11)
    assert (host.pond.committed_offset, host.acknowledged()) == (0, [])
    host.server.run(50)
    assert (host.pond.committed_offset, host.acknowledged()) == (1, [0])


def test_an_isr_that_grows_commits_nothing_that_only_the_leaders_memory_has(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = LeaderNode(make_server, make_batch, min_insync_replicas="1")
    host.lead("1", partition_epoch=11)
    host.produce(acks=LEADER)
    host.lead("12", partition_epoch=12)
    assert host.pond.committed_offset == 0
    host.server.run(50)
    assert host.pond.committed_offset == 0
    host.fetch(2, 1)
    host.server.run(1)
    assert host.pond.committed_offset == 1


def test_a_disk_that_fails_acknowledges_nothing(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = LeaderNode(make_server, make_batch, flush_ack="always")
    host.server.run(100)
    host.server.disk.fail_syncs("pond-0")
    host.produce()
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(100)
    assert host.acknowledged() == ["KAFKA_STORAGE_ERROR"]
    assert host.pond.committed_offset == 0


# The start of the log.


def test_records_are_deleted_once_the_replicas_that_are_there_have_followed(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    kind = m.DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=-1)
    host.reader.send(kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[partition])], timeout_ms=5000), 2)
    host.server.run(100)
    assert [host.fetched(node_id) for node_id in host.followers] == [[[]], [[]]], "they hear of the new start at once"
    assert host.reader.replies() == []
    host.fetch(2, 1, start=1)
    host.server.run(50)
    assert host.reader.replies() == []
    # A replica that is offline deletes the records when it returns.
    host.server.broker.image.replay(BrokerRegistrationChangeRecord(3, 103, fenced=1))
    host.fetch(2, 1, start=1)
    host.server.run(50)
    (reply,) = host.reader.replies()
    assert (reply.topics[0].partitions[0].error_code, reply.topics[0].partitions[0].low_watermark) == (0, 1)


def test_the_wait_for_followers_that_have_not_deleted_times_out(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    for node_id in host.followers:
        host.fetch(node_id, 1)
    host.server.run(1)
    kind = m.DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=-1)
    host.reader.send(kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[partition])], timeout_ms=1), 2)
    host.server.run(100)
    (reply,) = host.reader.replies()
    (result,) = reply.topics[0].partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    for node_id in host.followers:
        host.fetch(node_id, 1, start=1)
    host.server.run(50)
    assert host.reader.replies() == []


def test_what_is_not_committed_cannot_be_deleted(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    kind = m.DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=1)
    reply = host.reader.ask(
        kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[partition])], timeout_ms=100), 2
    )
    assert reply.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleting_a_partition_answers_its_pending_requests(host: LeaderNode) -> None:
    host.produce(timeout_ms=30_000)
    starts: list[Any] = []
    host.pond.leader_role.after_start(1).then(starts.append, starts.append)  # type: ignore[union-attr]
    assert (host.acknowledged(), starts) == ([], [])
    host.server.broker.partitions.remove(host.pond)
    host.server.run(1)
    assert host.acknowledged() == ["NOT_LEADER_OR_FOLLOWER"]
    assert [each.code.name for each in starts] == ["NOT_LEADER_OR_FOLLOWER"]
    late: list[Any] = []
    host.pond.after_commit(1, None).then(late.append, late.append)
    assert [each.code.name for each in late] == ["NOT_LEADER_OR_FOLLOWER"]


def test_records_are_deleted_without_a_follower_that_is_gone(host: LeaderNode) -> None:
    host.produce(acks=LEADER)
    for node_id in (2, 3):
        host.fetch(node_id, 1, last_epoch=EPOCH)
    ended: list[Any] = []
    host.pond.delete_before(1).then(ended.append, ended.append)
    host.fetch(2, 1, last_epoch=EPOCH, start=1)
    assert ended == []
    end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9003),)
    host.server.broker.image.replay(RegisterBrokerRecord(3, UUID(int=103), 103, end_points, fenced=True))
    host.lead("12", partition_epoch=11)
    assert ended == [None]


def test_records_are_not_deleted_for_good_while_too_few_are_in_sync(host: LeaderNode) -> None:
    """A replica that left the ISR before the delete may lead again, and would still have the records."""
    host.produce(acks=LEADER)
    for node_id in (2, 3):
        host.fetch(node_id, 1, last_epoch=EPOCH)
    for node_id in (2, 3):
        end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9000 + node_id),)
        record = RegisterBrokerRecord(node_id, UUID(int=100 + node_id), 100 + node_id, end_points, fenced=True)
        host.server.broker.image.replay(record)
    host.lead("1", partition_epoch=11)
    ended: list[Any] = []
    host.pond.delete_before(1).then(ended.append, ended.append)
    host.server.run(1)
    assert ended == []
    host.lead("12", partition_epoch=12)
    assert ended == [None]
