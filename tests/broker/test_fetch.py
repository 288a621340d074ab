"""Fetch in process: what is read, how long it waits, and that no file is held longer than necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.partitions import ME, view
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.broker.fetch import consumer_fetch
from millpond.broker.fetch.pending_fetches import FEW
from millpond.broker.replication.partitions import Partition
from millpond.log.partition_log import PartitionLog
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

VERSIONS = range(4, 19)


class Play:
    """A broker with topics, and a consumer that fetches `(topic, partition, offset)`."""

    def __init__(self, make_desk: Callable[..., Any], make_batch: Callable[..., memoryview], **texts: str) -> None:
        self.desk = make_desk({name.replace("_", "."): text for name, text in texts.items()})
        self.pond = self.desk.create("pond", 2)
        self.reader = self.desk.connect()
        self.batch = make_batch

    def append(self, *values: bytes, topic: str = "pond", index: int = 0) -> None:
        """One batch for each value."""
        partition = self.desk.broker.partitions.get(topic, index)
        for value in values:
            partition.append(self.batch(value), zstd=True)

    def request(self, version: int, *wanted: tuple[str, int, int], epoch: int = -1, **fields: Any) -> m.FetchRequest:
        bytes_max = fields.pop("partition_max_bytes", 1 << 20)
        topics = []
        for name, index, offset in wanted:
            topic = self.desk.broker.image.topics.get(name)
            partition = m.FetchRequest.FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=epoch
            )
            topics.append(
                m.FetchRequest.FetchTopic(
                    topic=name if version < 13 else "",
                    topic_id=topic.id if version >= 13 and topic else NO_TOPIC_ID,
                    partitions=[partition],
                )
            )
        return m.FetchRequest(
            **{"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **fields}, topics=topics
        )

    def send(self, *wanted: tuple[str, int, int], version: int = 12, **fields: Any) -> None:
        self.reader.send(self.request(version, *wanted, **fields), version)

    def answers(self) -> list[Any]:
        """For each reply, the values of each partition or the name of its error."""
        return [
            {
                f"{topic.topic or 'id'}-{partition.partition_index}": values_or_error(partition)
                for topic in reply.responses
                for partition in topic.partitions
            }
            for reply in self.reader.replies()
        ]

    def watchers(self) -> int:
        return sum(len(partition.watchers) for partition in self.desk.broker.partitions)

    def holds(self) -> int:
        """How many reads still hold files of the topic."""
        logs = [partition.log for partition in self.desk.broker.partitions]
        return sum(segment.file._holds for log in logs for segment in log.segments)


def values_or_error(partition: Any) -> Any:
    if partition.error_code:
        return ErrorCode(partition.error_code).name
    data = bytes(partition.records or b"")
    return [record.value for position, _ in walk(data) for record in decode_batch(data, position)]


@pytest.fixture
def play(make_desk: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_desk, make_batch)


# Reading.


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_the_same_records(play: Play, version: int) -> None:
    play.append(b"a", b"b")
    play.send(("pond", 0, 1), version=version)
    (reply,) = play.reader.replies()
    (topic,) = reply.responses
    (partition,) = topic.partitions
    assert values_or_error(partition) == [b"b"]
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    if version >= 13:
        assert topic.topic_id == play.pond.topic_id
    else:
        assert topic.topic == "pond"


def test_several_partitions_come_in_the_order_in_which_they_are_wanted(play: Play) -> None:
    play.desk.create("weir")
    play.append(b"a")
    play.append(b"b", index=1)
    play.append(b"c", topic="weir")
    play.send(("weir", 0, 0), ("pond", 1, 0), ("pond", 0, 0))
    assert play.answers() == [{"weir-0": [b"c"], "pond-1": [b"b"], "pond-0": [b"a"]}]


def test_the_bytes_are_shared_and_the_first_partition_always_gets_some(play: Play) -> None:
    play.append(b"a" * 500)
    play.append(b"b" * 500, index=1)
    play.send(("pond", 0, 0), ("pond", 1, 0), max_bytes=10)
    assert play.answers() == [{"pond-0": [b"a" * 500], "pond-1": []}]
    play.send(("pond", 0, 1), ("pond", 1, 0), max_bytes=10)
    assert play.answers() == [{"pond-0": [], "pond-1": [b"b" * 500]}]


def test_the_broker_has_a_limit_of_its_own(make_desk: Callable[..., Any], make_batch: Callable[..., Any]) -> None:
    play = Play(make_desk, make_batch, fetch_max_bytes="1024")
    play.append(*[b"v" * 400] * 4)
    play.send(("pond", 0, 0), max_bytes=1 << 30)
    assert play.answers() == [{"pond-0": [b"v" * 400] * 2}]


def test_faults_are_told_for_each_partition(play: Play) -> None:
    play.append(b"a")
    play.send(("pond", 0, 0), ("pond", 9, 0), ("lake", 0, 0), ("pond", 1, 5))
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert play.answers() == [
        {"pond-0": [b"a"], "pond-9": unknown, "lake-0": unknown, "pond-1": "OFFSET_OUT_OF_RANGE"}
    ]
    play.send(("lake", 0, 0), version=13)
    assert play.answers() == [{"id-0": "UNKNOWN_TOPIC_ID"}]


def test_a_reader_with_another_view_of_the_leadership_is_told(play: Play) -> None:
    play.append(b"a")
    for epoch, told in ((0, [b"a"]), (1, "UNKNOWN_LEADER_EPOCH")):
        play.send(("pond", 0, 0), epoch=epoch)
        assert play.answers() == [{"pond-0": told}]
    play.pond.follow(view(ME, 1, 1))
    play.send(("pond", 0, 0), epoch=0)
    assert play.answers() == [{"pond-0": "FENCED_LEADER_EPOCH"}]


def test_nothing_wanted_is_answered_at_once(play: Play) -> None:
    play.send()
    assert play.answers() == [{}]


# Waiting.


def test_records_wake_whoever_waits_for_them(play: Play) -> None:
    play.send(("pond", 0, 0), ("pond", 1, 0))
    play.desk.run(100)
    assert (play.answers(), play.watchers()) == ([], 2)
    play.append(b"a", index=1)
    assert play.answers() == [{"pond-0": [], "pond-1": [b"a"]}]
    assert play.watchers() == 0
    play.append(b"b")
    play.desk.run(1000)
    assert play.answers() == [], "answered once"


def test_an_append_costs_a_waiting_fetch_no_read_until_enough_is_there(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a consumer's many partitions used to be read again at every append."""
    partitions = [("pond", 0, 0), ("pond", 1, 0)]
    reads: list[str] = []
    read = consumer_fetch.read_committed

    def counted(partition: Partition, *args: Any, **fields: Any) -> Any:
        reads.append(partition.name.folder)
        return read(partition, *args, **fields)

    monkeypatch.setattr(consumer_fetch, "read_committed", counted)
    size = len(play.batch(b"v"))
    for isolation_level in (0, 1):
        play.send(*partitions, min_bytes=10 * size, isolation_level=isolation_level, partition_max_bytes=8 * size)
        assert reads == ["pond-0", "pond-1"] * 1
        for _ in range(7):
            play.append(b"v")
        play.append(b"v", index=1)
        assert reads == ["pond-0", "pond-1"]
        play.append(b"v", b"v", b"v")
        # The ninth and tenth record of a partition do not count: the client takes eight from each.
        assert reads == ["pond-0", "pond-1"], "too little can be sent"
        play.append(b"v", index=1)
        assert reads == ["pond-0", "pond-1"] * 2
        (answer,) = play.answers()
        assert [len(values) for values in answer.values()] == [8, 2]
        reads.clear()
        partitions = [("pond", 0, 10), ("pond", 1, 2)]


def test_what_an_open_transaction_holds_back_wakes_nobody_and_its_end_does(play: Play) -> None:
    size = len(play.batch(b"v"))
    play.send(("pond", 0, 0), min_bytes=2 * size, isolation_level=1, max_wait_ms=400)
    fields = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for number in range(3):
        permit = permitted(play.pond.log.producers, 7, 0, number, play.desk.broker.clock.wall_ms())
        batch = play.batch(b"v", base_sequence=number, **fields)
        play.pond.append(batch, zstd=True, verification=permit)
    assert play.answers() == []
    play.pond.append_marker(7, 0, True, 0, 0)
    (answer,) = play.answers()
    assert len(answer["pond-0"]) >= 3


def test_the_end_of_a_transaction_that_was_there_before_wakes_who_waits_for_much(play: Play) -> None:
    """Only what arrived after the fetch was counted, so it waited for its deadline with megabytes to read."""
    fields = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    permit = permitted(play.pond.log.producers, 7, 0, 0, play.desk.broker.clock.wall_ms())
    play.pond.append(play.batch(b"v" * 5000, base_sequence=0, **fields), zstd=True, verification=permit)
    play.send(("pond", 0, 0), min_bytes=4000, isolation_level=1, max_wait_ms=400)
    play.append(b"w")
    assert play.answers() == []
    play.pond.append_marker(7, 0, True, 0, 0)
    (answer,) = play.answers()
    assert answer["pond-0"][:2] == [b"v" * 5000, b"w"]


def test_an_unreadable_index_of_aborted_transactions_holds_no_file(play: Play, monkeypatch: Any) -> None:
    """Each such fetch used to keep a file open forever."""
    play.append(b"v")

    def refuse(*_: object) -> None:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(PartitionLog, "aborted_transactions", refuse)
    play.send(("pond", 0, 0), isolation_level=1)
    assert play.answers() == [{"pond-0": "KAFKA_STORAGE_ERROR"}]
    assert play.holds() == 0


def test_more_than_a_reply_may_hold_is_not_waited_for(play: Play) -> None:
    size = len(play.batch(b"v"))
    play.send(("pond", 0, 0), min_bytes=1 << 30, max_bytes=2 * size)
    play.append(b"a")
    assert play.answers() == []
    play.append(b"b")
    assert play.answers() == [{"pond-0": [b"a", b"b"]}]


def test_a_partition_that_is_named_many_times_is_read_once(play: Play) -> None:
    play.append(b"a", b"b")
    play.send(("pond", 0, 0), ("pond", 0, 0), ("pond", 0, 1))
    assert play.answers() == [{"pond-0": [b"b"]}]


def test_the_deadline_brings_an_empty_answer(play: Play) -> None:
    play.send(("pond", 0, 0), max_wait_ms=300)
    play.desk.run(299)
    assert play.answers() == []
    play.desk.run(1)
    assert (play.answers(), play.watchers()) == ([{"pond-0": []}], 0)


def test_min_bytes_are_waited_for_and_the_deadline_takes_less(play: Play) -> None:
    play.append(b"a")
    size = play.pond.log.size_bytes
    play.send(("pond", 0, 0), min_bytes=2 * size)
    play.append(b"b")
    assert play.answers() == [{"pond-0": [b"a", b"b"]}]
    play.send(("pond", 0, 0), min_bytes=4 * size)
    play.append(b"c")
    assert (play.answers(), play.holds()) == ([], 0)
    play.desk.run(500)
    assert play.answers() == [{"pond-0": [b"a", b"b", b"c"]}]


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}])
def test_who_does_not_want_to_wait_is_answered_at_once(play: Play, fields: dict[str, int]) -> None:
    play.send(("pond", 0, 0), **fields)
    assert play.answers() == [{"pond-0": []}]


def test_an_error_is_not_kept_waiting(play: Play) -> None:
    play.send(("pond", 0, 0), ("lake", 0, 0))
    assert play.answers() == [{"pond-0": [], "lake-0": "UNKNOWN_TOPIC_OR_PARTITION"}]


def test_nobody_may_wait_for_ever(make_desk: Callable[..., Any], make_batch: Callable[..., Any]) -> None:
    play = Play(make_desk, make_batch, fetch_wait_max_ms="1000")
    play.send(("pond", 0, 0), max_wait_ms=(1 << 31) - 1)
    play.desk.run(1000)
    assert play.answers() == [{"pond-0": []}]


def test_a_topic_that_is_deleted_wakes_its_readers(play: Play) -> None:
    play.send(("pond", 0, 0), ("pond", 1, 0), max_wait_ms=5_000)
    play.desk.delete("pond")
    (answer,) = play.answers()
    assert answer["pond-0"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_reader_that_goes_away_leaves_no_trace(play: Play) -> None:
    play.send(("pond", 0, 0), ("pond", 1, 0))
    play.reader.link.end()
    assert play.watchers() == 0
    play.append(b"a")
    play.desk.run(1000)
    assert play.holds() == 0


def test_the_readers_own_record_wakes_him_and_the_answers_keep_their_order(play: Play) -> None:
    play.send(("pond", 0, 0))
    play.send(("pond", 1, 0), max_wait_ms=0)
    assert play.answers() == []
    play.append(b"a")
    assert play.answers() == [{"pond-0": [b"a"]}, {"pond-1": []}]


def test_very_many_that_wait_for_the_same_are_answered_in_turns(play: Play) -> None:
    """Twenty connections of one client once held the loop for two seconds at each record."""
    pending = play.desk.broker.pending_fetches
    for _ in range(3 * FEW):
        play.send(("pond", 0, 0))
    assert len(pending) == 3 * FEW
    play.append(b"a")
    assert play.answers() == []
    play.desk.run(1)
    assert play.answers() == [{"pond-0": [b"a"]}] * 3 * FEW
    assert (len(pending), play.watchers()) == (0, 0)


def test_very_many_whose_time_is_over_at_once_are_answered_in_turns(play: Play) -> None:
    pending = play.desk.broker.pending_fetches
    waits: list[Any] = []
    pending._turns.wait = waits.append
    for _ in range(FEW + 1):
        play.send(("pond", 0, 0))
    play.desk.run(500)
    assert (len(waits), play.answers()) == (FEW + 1, [])
    # A fetch that was about to get an empty response takes what has arrived since.
    play.append(b"a")
    for each in waits:
        each()
    play.desk.run(1)
    assert play.answers() == [{"pond-0": [b"a"]}] * (FEW + 1)
    assert (len(pending), play.watchers()) == (0, 0)


def test_readers_that_go_away_are_not_counted_any_more(play: Play) -> None:
    for _ in range(3):
        play.send(("pond", 0, 0))
    assert len(play.desk.broker.pending_fetches) == 3
    play.reader.link.end()
    assert len(play.desk.broker.pending_fetches) == 0


# Files.


def test_files_are_given_back_once_the_answer_has_left(play: Play) -> None:
    play.append(b"a")
    play.reader.link.stuck = True
    play.send(("pond", 0, 0))
    assert play.holds() == 1
    play.reader.link.read_all()
    assert (play.answers(), play.holds()) == ([{"pond-0": [b"a"]}], 0)


def test_cold_ranges_are_read_by_a_worker_first(play: Play) -> None:
    play.append(b"a")
    play.desk.disk.cold_share = 1.0
    play.send(("pond", 0, 0))
    assert (play.answers(), play.holds()) == ([], 1)
    play.desk.run(20)
    assert (play.answers(), play.holds()) == ([{"pond-0": [b"a"]}], 0)


def test_what_is_warmed_after_waiting_is_answered_once(play: Play) -> None:
    play.desk.disk.cold_share = 1.0
    play.send(("pond", 0, 0), max_wait_ms=1)
    play.append(b"a")
    assert (play.answers(), play.watchers()) == ([], 0)
    play.append(b"b")
    play.desk.run(100)
    assert play.answers() == [{"pond-0": [b"a"]}], "as it was when the worker began"
    assert play.holds() == 0


def test_a_reader_that_goes_away_while_a_worker_reads_holds_nothing(play: Play) -> None:
    play.append(b"a")
    play.desk.disk.cold_share = 1.0
    play.send(("pond", 0, 0))
    play.reader.link.end()
    play.desk.run(100)
    assert play.holds() == 0


def test_a_disk_that_cannot_be_read_is_told(play: Play) -> None:
    play.append(b"a")
    play.desk.disk.cold_share = 1.0
    play.send(("pond", 0, 0))
    play.desk.disk.fail_reads("pond-0")
    play.desk.run(100)
    (reply,) = play.reader.replies()
    assert reply.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert play.holds() == 0


# Sessions.


def test_a_session_tells_only_news(play: Play) -> None:
    play.append(b"a")
    play.send(("pond", 0, 0), ("pond", 1, 0), session_epoch=0)
    (first,) = play.reader.replies()
    session = first.session_id
    assert session > 0
    play.send(("pond", 0, 1), session_id=session, session_epoch=1)
    play.append(b"b")
    assert play.answers() == [{"pond-0": [b"b"]}]
    play.send(("pond", 0, 2), session_id=session, session_epoch=2)
    play.desk.run(500)
    assert play.answers() == [{}]
    play.send(session_id=session, session_epoch=2)
    (refused,) = play.reader.replies()
    assert (refused.error_code, refused.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)


def test_a_reader_that_does_not_wait_for_its_answers_may_forget_what_it_asked_for(play: Play) -> None:
    play.send(("pond", 0, 0), ("pond", 1, 0), session_epoch=0, max_wait_ms=0)
    (first,) = play.reader.replies()
    play.send(session_id=first.session_id, session_epoch=1)
    forgotten = [m.FetchRequest.ForgottenTopic(topic="pond", partitions=[0])]
    play.send(session_id=first.session_id, session_epoch=2, forgotten_topics_data=forgotten)
    # The producer must not pay for it.
    play.append(b"a")
    play.append(b"b", index=1)
    assert play.answers() == [{"pond-0": [b"a"]}, {"pond-1": [b"b"]}]
