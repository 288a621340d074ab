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


class Play:
    """Node 1 leads `pond`; the test plays nodes 2 and 3, which are registered."""

    def __init__(self, make_desk: Callable[..., Any], make_batch: Callable[..., memoryview], **configs: str) -> None:
        self.desk = make_desk({})
        self.batch = make_batch
        self.pond: Partition = self.desk.create("pond", **{"min_insync_replicas": "2", **configs})
        self.broker_epochs = {2: 102, 3: 103}
        for node_id, epoch in self.broker_epochs.items():
            self.register(node_id, epoch)
        self.lead()
        self.producer, self.reader = self.desk.connect(), self.desk.connect()
        self.followers = {node_id: self.desk.connect() for node_id in self.broker_epochs}

    def register(self, node_id: int, epoch: int) -> None:
        end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9000 + node_id),)
        self.desk.broker.image.replay(RegisterBrokerRecord(node_id, UUID(int=epoch), epoch, end_points, fenced=False))

    def lead(self, isr: str = "123", *, epoch: int = EPOCH, partition_epoch: int = 10, leader: int = 1) -> None:
        self.pond.follow(view(leader, epoch, partition_epoch, "123", isr))

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
        self.desk.run(1)
        (answer,) = self.fetched(node_id)
        return answer

    # Reading.

    def read(self, offset: int, *, wait_ms: int = 0, isolation: int = 0) -> None:
        kind = m.FetchRequest
        wanted = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = kind.FetchTopic(topic="pond", partitions=[wanted])
        self.reader.send(
            kind(max_wait_ms=wait_ms, min_bytes=1, isolation_level=isolation, session_epoch=-1, topics=[topic]), 12
        )

    def seen(self) -> list[Any]:
        return [answer_of(reply) for reply in self.reader.replies()]

    def end(self, *, replica_id: int = -1, version: int = 7) -> Any:
        kind = m.ListOffsetsRequest
        wanted = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = kind.ListOffsetsTopic(name="pond", partitions=[wanted])
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
def play(make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_desk, make_batch)


# Committing.


def test_a_write_is_acknowledged_once_every_replica_in_sync_has_it(play: Play) -> None:
    play.produce()
    assert (play.ask(2, 0), play.ask(3, 0), play.acknowledged()) == ([0], [0], [])
    play.fetch(2, 1)
    play.desk.run(5)
    assert (play.acknowledged(), play.pond.committed_offset) == ([], 0)
    play.fetch(3, 1)
    play.desk.run(5)
    assert (play.acknowledged(), play.pond.committed_offset) == ([0], 1)


def test_nobody_waits_for_replicas_who_asked_only_for_the_leader(play: Play) -> None:
    play.produce(acks=LEADER)
    assert (play.acknowledged(), play.pond.committed_offset) == ([0], 0)


def test_consumers_see_what_is_committed_and_are_woken_by_it(play: Play) -> None:
    play.read(0)
    play.read(0, wait_ms=400)
    play.produce()
    play.desk.run(10)
    assert play.seen() == [[]], "one was answered at once, the other waits for more than the leader has"
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    assert play.seen() == [[0]]


@pytest.mark.parametrize("isolation", [0, 1])
def test_what_is_written_but_not_committed_is_empty_and_not_out_of_range(play: Play, isolation: int) -> None:
    play.produce()
    play.produce()
    play.read(1, isolation=isolation)
    play.desk.run(1)
    assert play.seen() == [[]]
    play.read(3, isolation=isolation)
    play.desk.run(1)
    assert play.seen() == ["OFFSET_OUT_OF_RANGE"]


def test_a_follower_that_waits_gets_all_that_was_written_in_one_turn(play: Play) -> None:
    play.fetch(2, 0)
    play.desk.run(10)
    play.produce()
    play.produce()
    assert play.fetched(2) == []
    play.desk.run(1)
    assert play.fetched(2) == [[0, 1]]


def test_a_retry_waits_for_the_same_records(play: Play) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    play.produce(**fields)
    play.produce(b"v", **fields)
    assert play.acknowledged() == []
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    assert (play.acknowledged(), play.pond.log.end_offset) == ([0, 0], 1)


# Too few replicas.


def test_with_too_few_in_sync_nothing_is_written(play: Play) -> None:
    play.lead("1", partition_epoch=11)
    play.produce()
    assert (play.acknowledged(), play.pond.log.end_offset) == (["NOT_ENOUGH_REPLICAS"], 0)
    play.produce(acks=LEADER)
    assert play.acknowledged() == [0]
    play.desk.run(100)
    assert play.pond.committed_offset == 0, "below the least number nothing is committed"


def test_a_write_that_waits_when_replicas_leave_is_told_at_its_deadline(play: Play) -> None:
    play.produce(timeout_ms=100)
    play.lead("1", partition_epoch=11)
    play.desk.run(50)
    assert play.acknowledged() == []
    play.desk.run(60)
    assert play.acknowledged() == ["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]


def test_replicas_that_are_slow_time_a_write_out(play: Play) -> None:
    play.produce(timeout_ms=100)
    play.desk.run(110)
    assert play.acknowledged() == ["REQUEST_TIMED_OUT"]
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    assert (play.pond.committed_offset, play.acknowledged()) == (1, [])


def test_a_replica_that_leaves_holds_nobody_up_once_the_controller_agreed(play: Play) -> None:
    play.produce()
    play.fetch(2, 1)
    play.desk.run(5)
    assert play.acknowledged() == []
    play.lead("12", partition_epoch=11)
    assert play.acknowledged() == [0]


# Losing the leadership.


def test_whoever_waits_at_a_leader_that_leads_no_more_is_told_who_does(play: Play) -> None:
    topic = play.desk.broker.image.topics["pond"]
    play.produce()
    play.read(0, wait_ms=400)
    play.fetch(2, 1)
    play.desk.run(5)
    play.lead(leader=2, epoch=EPOCH + 1, partition_epoch=11)
    topic.partitions[0] = topic.partitions[0].__class__(
        replicas=(1, 2, 3), isr=(1, 2, 3), leader=2, leader_epoch=EPOCH + 1, partition_epoch=11
    )
    assert play.acknowledged() == ["NOT_LEADER_OR_FOLLOWER"]
    assert play.seen() == ["NOT_LEADER_OR_FOLLOWER"]
    play.desk.run(1)
    assert play.fetched(2) == ["FENCED_LEADER_EPOCH"]
    play.produce()
    (reply,) = play.producer.replies()
    (part,) = reply.responses[0].partition_responses
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, EPOCH + 1)
    play.read(0)
    (fetched,) = play.reader.replies()
    assert fetched.responses[0].partitions[0].current_leader.leader_id == 2
    assert play.pond.log.end_offset == 1


def test_what_was_known_to_be_committed_stays_so_in_the_next_role(play: Play) -> None:
    play.produce()
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    play.produce()
    play.lead(leader=2, epoch=EPOCH + 1, partition_epoch=11)
    assert play.pond.committed_offset == 1
    play.lead(epoch=EPOCH + 2, partition_epoch=12)
    assert (play.pond.committed_offset, play.pond.log.end_offset) == (1, 2)
    play.lead(leader=-1, epoch=EPOCH + 3, partition_epoch=13)
    assert (play.pond.committed_offset, play.pond.is_leader, play.pond.follower) == (1, False, None)


def test_old_metadata_is_no_news(play: Play) -> None:
    play.lead("12", partition_epoch=12)
    leading = play.pond.leading
    play.lead("123", partition_epoch=11)
    play.lead("123", partition_epoch=12)
    play.pond.follow(view(2, EPOCH - 1, 13, "123", "2"))
    assert play.pond.leading is leading is not None
    assert leading.view.isr == (1, 2)


# What a new leader does not know.


def test_a_new_leader_does_not_tell_the_end_before_it_knows_it(play: Play) -> None:
    play.produce(acks=LEADER)
    play.lead(epoch=EPOCH + 1, partition_epoch=11)
    assert (play.end(), play.end(replica_id=2)) == ("OFFSET_NOT_AVAILABLE", 1)
    assert play.end(version=4) == "LEADER_NOT_AVAILABLE"
    for node_id in play.followers:
        play.fetch(node_id, 1, epoch=EPOCH + 1)
    play.desk.run(1)
    assert play.end() == 1
    play.produce(acks=LEADER)
    assert play.end() == 1, "what lies beyond is not committed, and nobody has seen it"
    assert play.end(replica_id=-2) == 2, "who looks into the log sees all of it"


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
def test_only_a_fetch_of_our_own_history_counts(play: Play, fields: dict[str, int], answer: Any) -> None:
    play.produce(acks=LEADER)
    play.lead(epoch=7, partition_epoch=11)
    play.produce(acks=LEADER)
    play.produce(acks=LEADER)
    assert play.pond.log.epochs.entries == [(5, 0), (7, 1)]
    play.fetch(3, 3, epoch=7, last_epoch=7)
    assert play.ask(2, **{"offset": 3, "epoch": 7, "last_epoch": 7, **fields}) == answer
    assert play.pond.committed_offset == 0
    assert play.ask(2, 1, epoch=7, last_epoch=5) == [1, 2]
    assert play.pond.committed_offset == 1


def test_an_epoch_begins_before_anything_is_written_in_it(play: Play) -> None:
    play.produce(acks=LEADER)
    play.lead(epoch=7, partition_epoch=11)
    # The replica led in an epoch that no other replica has a record of, and must truncate it.
    assert play.ask(2, 1, epoch=7, last_epoch=6) == ("parts", 5, 1)
    assert play.ask(2, 1, epoch=7, last_epoch=7) == []


def test_a_stranger_is_no_replica(play: Play) -> None:
    play.register(4, 104)
    play.fetch(4, 0, broker_epoch=104)
    play.desk.run(1)
    assert play.fetched(4) == ["UNKNOWN_LEADER_EPOCH"]


def test_a_partition_with_one_replica_has_no_followers(play: Play) -> None:
    play.pond.follow(view(1, EPOCH + 1, 11))
    assert play.ask(2, 0, epoch=EPOCH + 1) == "UNKNOWN_LEADER_EPOCH"


def test_a_question_that_waited_counts_once(play: Play) -> None:
    play.fetch(2, 0)
    play.fetch(3, 0)
    play.desk.run(400)
    play.produce()
    play.desk.run(200)
    assert play.fetched(2) == [[0]]
    assert (play.acknowledged(), play.pond.committed_offset) == ([], 0)


# The disk.


@pytest.mark.parametrize("flush_ack", ["auto", "always", "never"])
def test_which_of_the_leaders_own_records_count(
    make_desk: Callable[..., Any], make_batch: Callable[..., memoryview], flush_ack: str
) -> None:
    play = Play(make_desk, make_batch, flush_ack=flush_ack, min_insync_replicas="1")
    play.produce()
    for node_id in play.followers:
        play.fetch(node_id, 1)
    at_once = play.acknowledged()
    play.desk.run(50)
    assert (at_once, play.acknowledged()) == (([], [0]) if flush_ack == "always" else ([0], []))
    # With only the leader in the ISR, the disk is the only copy.
    play.lead("1", partition_epoch=11)
    play.produce()
    at_once = play.acknowledged()
    play.desk.run(50)
    assert (at_once, play.acknowledged()) == (([1], []) if flush_ack == "never" else ([], [1]))


def test_a_shrunk_isr_commits_nothing_that_the_disk_does_not_have(
    make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    play = Play(make_desk, make_batch, min_insync_replicas="1")
    play.produce()
    play.lead("1", partition_epoch=11)
    assert (play.pond.committed_offset, play.acknowledged()) == (0, [])
    play.desk.run(50)
    assert (play.pond.committed_offset, play.acknowledged()) == (1, [0])


def test_an_isr_that_grows_commits_nothing_that_only_the_leaders_memory_has(
    make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    play = Play(make_desk, make_batch, min_insync_replicas="1")
    play.lead("1", partition_epoch=11)
    play.produce(acks=LEADER)
    play.lead("12", partition_epoch=12)
    assert play.pond.committed_offset == 0
    play.desk.run(50)
    assert play.pond.committed_offset == 0
    play.fetch(2, 1)
    play.desk.run(1)
    assert play.pond.committed_offset == 1


def test_a_disk_that_fails_acknowledges_nothing(
    make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    play = Play(make_desk, make_batch, flush_ack="always")
    play.desk.run(100)
    play.desk.disk.fail_syncs("pond-0")
    play.produce()
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(100)
    assert play.acknowledged() == ["KAFKA_STORAGE_ERROR"]
    assert play.pond.committed_offset == 0


# The start of the log.


def test_records_are_deleted_once_the_replicas_that_are_there_have_followed(play: Play) -> None:
    play.produce(acks=LEADER)
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    kind = m.DeleteRecordsRequest
    wanted = kind.DeleteRecordsPartition(partition_index=0, offset=-1)
    play.reader.send(kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[wanted])], timeout_ms=5000), 2)
    play.desk.run(100)
    assert [play.fetched(node_id) for node_id in play.followers] == [[[]], [[]]], "they hear of the new start at once"
    assert play.reader.replies() == []
    play.fetch(2, 1, start=1)
    play.desk.run(50)
    assert play.reader.replies() == []
    # A replica that is offline deletes the records when it returns.
    play.desk.broker.image.replay(BrokerRegistrationChangeRecord(3, 103, fenced=1))
    play.fetch(2, 1, start=1)
    play.desk.run(50)
    (reply,) = play.reader.replies()
    assert (reply.topics[0].partitions[0].error_code, reply.topics[0].partitions[0].low_watermark) == (0, 1)


def test_the_wait_for_followers_that_have_not_deleted_times_out(play: Play) -> None:
    play.produce(acks=LEADER)
    for node_id in play.followers:
        play.fetch(node_id, 1)
    play.desk.run(1)
    kind = m.DeleteRecordsRequest
    wanted = kind.DeleteRecordsPartition(partition_index=0, offset=-1)
    play.reader.send(kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[wanted])], timeout_ms=1), 2)
    play.desk.run(100)
    (reply,) = play.reader.replies()
    (result,) = reply.topics[0].partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    for node_id in play.followers:
        play.fetch(node_id, 1, start=1)
    play.desk.run(50)
    assert play.reader.replies() == []


def test_what_is_not_committed_cannot_be_deleted(play: Play) -> None:
    play.produce(acks=LEADER)
    kind = m.DeleteRecordsRequest
    wanted = kind.DeleteRecordsPartition(partition_index=0, offset=1)
    reply = play.reader.ask(
        kind(topics=[kind.DeleteRecordsTopic(name="pond", partitions=[wanted])], timeout_ms=100), 2
    )
    assert reply.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_whoever_waits_for_a_partition_hears_at_once_that_it_is_deleted(play: Play) -> None:
    play.produce(timeout_ms=30_000)
    starts: list[Any] = []
    play.pond.leading.after_start(1).then(starts.append, starts.append)  # type: ignore[union-attr]
    assert (play.acknowledged(), starts) == ([], [])
    play.desk.broker.partitions.discard(play.pond)
    play.desk.run(1)
    assert play.acknowledged() == ["NOT_LEADER_OR_FOLLOWER"]
    assert [each.code.name for each in starts] == ["NOT_LEADER_OR_FOLLOWER"]
    late: list[Any] = []
    play.pond.after_commit(1, None).then(late.append, late.append)
    assert [each.code.name for each in late] == ["NOT_LEADER_OR_FOLLOWER"]


def test_records_are_deleted_without_a_follower_that_is_gone(play: Play) -> None:
    play.produce(acks=LEADER)
    for node_id in (2, 3):
        play.fetch(node_id, 1, last_epoch=EPOCH)
    ended: list[Any] = []
    play.pond.delete_before(1).then(ended.append, ended.append)
    play.fetch(2, 1, last_epoch=EPOCH, start=1)
    assert ended == []
    end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9003),)
    play.desk.broker.image.replay(RegisterBrokerRecord(3, UUID(int=103), 103, end_points, fenced=True))
    play.lead("12", partition_epoch=11)
    assert ended == [None]


def test_records_are_not_deleted_for_good_while_too_few_are_in_sync(play: Play) -> None:
    """A replica that left the ISR before the delete may lead again, and would still have the records."""
    play.produce(acks=LEADER)
    for node_id in (2, 3):
        play.fetch(node_id, 1, last_epoch=EPOCH)
    for node_id in (2, 3):
        end_points = (BrokerEndpoint("PLAINTEXT", "10.0.0.7", 9000 + node_id),)
        record = RegisterBrokerRecord(node_id, UUID(int=100 + node_id), 100 + node_id, end_points, fenced=True)
        play.desk.broker.image.replay(record)
    play.lead("1", partition_epoch=11)
    ended: list[Any] = []
    play.pond.delete_before(1).then(ended.append, ended.append)
    play.desk.run(1)
    assert ended == []
    play.lead("12", partition_epoch=12)
    assert ended == [None]
