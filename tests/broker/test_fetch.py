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
from millpond.broker.fetch.pending_fetch import PendingFetch
from millpond.broker.fetch.pending_fetches import FEW
from millpond.broker.fetch.short_path import PendingShortFetch
from millpond.broker.replication.partitions import WOKEN_AT_ONCE, Partition
from millpond.log.partition_log import ABORTED_MAX, PartitionLog
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

VERSIONS = range(4, 19)


class ConsumerAndBroker:
    """A broker with topics, and a consumer that fetches `(topic, partition, offset)`."""

    def __init__(self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview], **texts: str) -> None:
        self.server = make_server({name.replace("_", "."): text for name, text in texts.items()})
        self.pond = self.server.create("pond", 2)
        self.reader = self.server.connect()
        self.batch = make_batch

    def append(self, *values: bytes, topic: str = "pond", index: int = 0) -> None:
        """One batch for each value."""
        partition = self.server.broker.partitions.get(topic, index)
        for value in values:
            partition.append(self.batch(value), zstd=True)

    def request(self, version: int, *wanted: tuple[str, int, int], epoch: int = -1, **fields: Any) -> m.FetchRequest:
        bytes_max = fields.pop("partition_max_bytes", 1 << 20)
        topics = []
        for name, index, offset in wanted:
            topic = self.server.broker.image.topics.get(name)
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
        return sum(len(partition.watchers) for partition in self.server.broker.partitions)

    def holds(self) -> int:
        """How many reads still hold files of the topic."""
        logs = [partition.log for partition in self.server.broker.partitions]
        return sum(segment.file._holds for log in logs for segment in log.segments)


def values_or_error(partition: Any) -> Any:
    if partition.error_code:
        return ErrorCode(partition.error_code).name
    data = bytes(partition.records or b"")
    return [record.value for position, _ in walk(data) for record in decode_batch(data, position)]


@pytest.fixture
def consumer(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ConsumerAndBroker:
    return ConsumerAndBroker(make_server, make_batch)


# Reading.


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_the_same_records(consumer: ConsumerAndBroker, version: int) -> None:
    consumer.append(b"a", b"b")
    consumer.send(("pond", 0, 1), version=version)
    (reply,) = consumer.reader.replies()
    (topic,) = reply.responses
    (partition,) = topic.partitions
    assert values_or_error(partition) == [b"b"]
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    if version >= 13:
        assert topic.topic_id == consumer.pond.topic_id
    else:
        assert topic.topic == "pond"


def test_several_partitions_come_in_the_order_in_which_they_are_wanted(consumer: ConsumerAndBroker) -> None:
    consumer.server.create("weir")
    consumer.append(b"a")
    consumer.append(b"b", index=1)
    consumer.append(b"c", topic="weir")
    consumer.send(("weir", 0, 0), ("pond", 1, 0), ("pond", 0, 0))
    assert consumer.answers() == [{"weir-0": [b"c"], "pond-1": [b"b"], "pond-0": [b"a"]}]


def test_the_bytes_are_shared_and_the_first_partition_always_gets_some(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a" * 500)
    consumer.append(b"b" * 500, index=1)
    consumer.send(("pond", 0, 0), ("pond", 1, 0), max_bytes=10)
    assert consumer.answers() == [{"pond-0": [b"a" * 500], "pond-1": []}]
    consumer.send(("pond", 0, 1), ("pond", 1, 0), max_bytes=10)
    assert consumer.answers() == [{"pond-0": [], "pond-1": [b"b" * 500]}]


def test_the_broker_has_a_limit_of_its_own(make_server: Callable[..., Any], make_batch: Callable[..., Any]) -> None:
    consumer = ConsumerAndBroker(make_server, make_batch, fetch_max_bytes="1024")
    consumer.append(*[b"v" * 400] * 4)
    consumer.send(("pond", 0, 0), max_bytes=1 << 30)
    assert consumer.answers() == [{"pond-0": [b"v" * 400] * 2}]


def test_faults_are_told_for_each_partition(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.send(("pond", 0, 0), ("pond", 9, 0), ("lake", 0, 0), ("pond", 1, 5))
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert consumer.answers() == [
        {"pond-0": [b"a"], "pond-9": unknown, "lake-0": unknown, "pond-1": "OFFSET_OUT_OF_RANGE"}
    ]
    consumer.send(("lake", 0, 0), version=13)
    assert consumer.answers() == [{"id-0": "UNKNOWN_TOPIC_ID"}]


def test_a_reader_with_another_view_of_the_leadership_is_told(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    for epoch, told in ((0, [b"a"]), (1, "UNKNOWN_LEADER_EPOCH")):
        consumer.send(("pond", 0, 0), epoch=epoch)
        assert consumer.answers() == [{"pond-0": told}]
    consumer.pond.apply_metadata(view(ME, 1, 1))
    consumer.send(("pond", 0, 0), epoch=0)
    assert consumer.answers() == [{"pond-0": "FENCED_LEADER_EPOCH"}]


def test_nothing_wanted_is_answered_at_once(consumer: ConsumerAndBroker) -> None:
    consumer.send()
    assert consumer.answers() == [{}]


# Waiting.


def test_new_records_wake_pending_fetches(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0), ("pond", 1, 0))
    consumer.server.run(100)
    assert (consumer.answers(), consumer.watchers()) == ([], 2)
    consumer.append(b"a", index=1)
    assert consumer.answers() == [{"pond-0": [], "pond-1": [b"a"]}]
    assert consumer.watchers() == 0
    consumer.append(b"b")
    consumer.server.run(1000)
    assert consumer.answers() == [], "answered once"


def test_an_append_costs_a_waiting_fetch_no_read_until_enough_is_there(
    consumer: ConsumerAndBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a consumer's many partitions used to be read again at every append."""
    partitions = [("pond", 0, 0), ("pond", 1, 0)]
    reads: list[str] = []
    read = consumer_fetch.read_committed

    def counted(partition: Partition, *args: Any, **fields: Any) -> Any:
        reads.append(partition.name.folder)
        return read(partition, *args, **fields)

    monkeypatch.setattr(consumer_fetch, "read_committed", counted)
    size = len(consumer.batch(b"v"))
    for isolation_level in (0, 1):
        consumer.send(*partitions, min_bytes=10 * size, isolation_level=isolation_level, partition_max_bytes=8 * size)
        assert reads == ["pond-0", "pond-1"] * 1
        for _ in range(7):
            consumer.append(b"v")
        consumer.append(b"v", index=1)
        assert reads == ["pond-0", "pond-1"]
        consumer.append(b"v", b"v", b"v")
        # The ninth and tenth record of a partition do not count: the client takes eight from each.
        assert reads == ["pond-0", "pond-1"], "too little can be sent"
        consumer.append(b"v", index=1)
        assert reads == ["pond-0", "pond-1"] * 2
        (answer,) = consumer.answers()
        assert [len(values) for values in answer.values()] == [8, 2]
        reads.clear()
        partitions = [("pond", 0, 10), ("pond", 1, 2)]


def test_records_of_an_open_transaction_wake_no_fetch_until_it_ends(consumer: ConsumerAndBroker) -> None:
    size = len(consumer.batch(b"v"))
    consumer.send(("pond", 0, 0), min_bytes=2 * size, isolation_level=1, max_wait_ms=400)
    fields = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for number in range(3):
        permit = permitted(consumer.pond.log.producers, 7, 0, number, consumer.server.broker.clock.wall_ms())
        batch = consumer.batch(b"v", base_sequence=number, **fields)
        consumer.pond.append(batch, zstd=True, verification=permit)
    assert consumer.answers() == []
    consumer.pond.append_marker(7, 0, True, 0, 0)
    (answer,) = consumer.answers()
    assert len(answer["pond-0"]) >= 3


def test_the_end_of_a_transaction_that_was_there_before_wakes_who_waits_for_much(consumer: ConsumerAndBroker) -> None:
    """Only what arrived after the fetch was counted, so it waited for its deadline with megabytes to read."""
    fields = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    permit = permitted(consumer.pond.log.producers, 7, 0, 0, consumer.server.broker.clock.wall_ms())
    consumer.pond.append(consumer.batch(b"v" * 5000, base_sequence=0, **fields), zstd=True, verification=permit)
    consumer.send(("pond", 0, 0), min_bytes=4000, isolation_level=1, max_wait_ms=400)
    consumer.append(b"w")
    assert consumer.answers() == []
    consumer.pond.append_marker(7, 0, True, 0, 0)
    (answer,) = consumer.answers()
    assert answer["pond-0"][:2] == [b"v" * 5000, b"w"]


def test_an_unreadable_index_of_aborted_transactions_holds_no_file(
    consumer: ConsumerAndBroker, monkeypatch: Any
) -> None:
    """Each such fetch used to keep a file open forever."""
    consumer.append(b"v")

    def refuse(*_: object) -> None:
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(PartitionLog, "limited_aborted_transactions", refuse)
    consumer.send(("pond", 0, 0), isolation_level=1)
    assert consumer.answers() == [{"pond-0": "KAFKA_STORAGE_ERROR"}]
    assert consumer.holds() == 0


def test_more_than_a_reply_may_hold_is_not_waited_for(consumer: ConsumerAndBroker) -> None:
    size = len(consumer.batch(b"v"))
    consumer.send(("pond", 0, 0), min_bytes=1 << 30, max_bytes=2 * size)
    consumer.append(b"a")
    assert consumer.answers() == []
    consumer.append(b"b")
    assert consumer.answers() == [{"pond-0": [b"a", b"b"]}]


def test_a_partition_that_is_named_many_times_is_read_once(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a", b"b")
    consumer.send(("pond", 0, 0), ("pond", 0, 0), ("pond", 0, 1))
    assert consumer.answers() == [{"pond-0": [b"b"]}]


def test_the_deadline_brings_an_empty_answer(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0), max_wait_ms=300)
    consumer.server.run(299)
    assert consumer.answers() == []
    consumer.server.run(1)
    assert (consumer.answers(), consumer.watchers()) == ([{"pond-0": []}], 0)


def test_min_bytes_are_waited_for_and_the_deadline_takes_less(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    size = consumer.pond.log.size_bytes
    consumer.send(("pond", 0, 0), min_bytes=2 * size)
    consumer.append(b"b")
    assert consumer.answers() == [{"pond-0": [b"a", b"b"]}]
    consumer.send(("pond", 0, 0), min_bytes=4 * size)
    consumer.append(b"c")
    assert (consumer.answers(), consumer.holds()) == ([], 0)
    consumer.server.run(500)
    assert consumer.answers() == [{"pond-0": [b"a", b"b", b"c"]}]


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}])
def test_who_does_not_want_to_wait_is_answered_at_once(consumer: ConsumerAndBroker, fields: dict[str, int]) -> None:
    consumer.send(("pond", 0, 0), **fields)
    assert consumer.answers() == [{"pond-0": []}]


def test_an_error_is_not_kept_waiting(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0), ("lake", 0, 0))
    assert consumer.answers() == [{"pond-0": [], "lake-0": "UNKNOWN_TOPIC_OR_PARTITION"}]


def test_the_wait_of_a_fetch_is_limited(make_server: Callable[..., Any], make_batch: Callable[..., Any]) -> None:
    consumer = ConsumerAndBroker(make_server, make_batch, fetch_wait_max_ms="1000")
    consumer.send(("pond", 0, 0), max_wait_ms=(1 << 31) - 1)
    consumer.server.run(1000)
    assert consumer.answers() == [{"pond-0": []}]


def test_a_topic_that_is_deleted_wakes_its_readers(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0), ("pond", 1, 0), max_wait_ms=5_000)
    consumer.server.delete("pond")
    (answer,) = consumer.answers()
    assert answer["pond-0"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_reader_that_goes_away_leaves_no_trace(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0), ("pond", 1, 0))
    consumer.reader.link.end()
    assert consumer.watchers() == 0
    consumer.append(b"a")
    consumer.server.run(1000)
    assert consumer.holds() == 0


def test_the_readers_own_record_wakes_him_and_the_answers_keep_their_order(consumer: ConsumerAndBroker) -> None:
    consumer.send(("pond", 0, 0))
    consumer.send(("pond", 1, 0), max_wait_ms=0)
    assert consumer.answers() == []
    consumer.append(b"a")
    assert consumer.answers() == [{"pond-0": [b"a"]}, {"pond-1": []}]


def test_very_many_that_wait_for_the_same_are_answered_in_turns(consumer: ConsumerAndBroker) -> None:
    """Twenty connections of one client once held the loop for two seconds at each record."""
    pending = consumer.server.broker.pending_fetches
    for _ in range(3 * FEW):
        consumer.send(("pond", 0, 0))
    assert len(pending) == 3 * FEW
    consumer.append(b"a")
    assert consumer.answers() == []
    consumer.server.run(1)
    assert consumer.answers() == [{"pond-0": [b"a"]}] * 3 * FEW
    assert (len(pending), consumer.watchers()) == (0, 0)


@pytest.mark.parametrize("fields", [{}, {"min_bytes": 400}], ids=["short", "general"])
def test_very_many_are_woken_in_steps_and_none_is_forgotten(
    consumer: ConsumerAndBroker, fields: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty thousand held the loop for a quarter of a second at each record."""
    woken = 0
    for kind in (PendingShortFetch, consumer_fetch.ConsumerFetch):
        on_append = kind.on_append

        def counted(self: Any, *args: Any, on_append: Any = on_append) -> None:
            nonlocal woken
            woken += 1
            on_append(self, *args)

        monkeypatch.setattr(kind, "on_append", counted)
    for count in (WOKEN_AT_ONCE + 1, 3 * WOKEN_AT_ONCE):
        end = consumer.pond.log.end_offset
        readers = [consumer.server.connect() for _ in range(count)]
        for reader in readers:
            reader.send(consumer.request(12, ("pond", 0, end), max_wait_ms=60_000, **fields), 12)
        woken = 0
        consumer.append(b"a" * 200)
        assert woken <= WOKEN_AT_ONCE
        consumer.append(b"b" * 200)
        readers[0].link.end()
        readers[-1].link.end()
        consumer.server.run(100)
        assert all(len(reader.replies()) == 1 for reader in readers[1:-1])
        assert (len(consumer.server.broker.pending_fetches), consumer.watchers()) == (0, 0)
        # With few again, no fetch waits for a turn.
        woken = 0
        consumer.append(b"c")
        consumer.send(("pond", 0, consumer.pond.log.end_offset))
        consumer.append(b"d")
        assert (woken, consumer.answers()) == (1, [{"pond-0": [b"d"]}])


@pytest.mark.parametrize("change", ["deletion", "role"])
@pytest.mark.parametrize("fields", [{}, {"min_bytes": 400}], ids=["short", "general"])
def test_very_many_are_dismissed_in_steps_and_none_is_forgotten(
    consumer: ConsumerAndBroker, fields: dict[str, int], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with twenty thousand pending fetches held the loop when it deleted its own topic."""
    dismissed = 0

    def counted(self: Any, answer: Any = PendingFetch.answer) -> None:
        nonlocal dismissed
        dismissed += 1
        answer(self)

    monkeypatch.setattr(PendingFetch, "answer", counted)
    readers = [consumer.server.connect() for _ in range(2 * WOKEN_AT_ONCE + 1)]
    for reader in readers:
        reader.send(consumer.request(12, ("pond", 0, 0), max_wait_ms=60_000, **fields), 12)
    if change == "role":
        consumer.pond.apply_metadata(view(ME, 1, 1))
    else:
        consumer.server.broker.partitions.remove(consumer.pond)
    assert dismissed <= WOKEN_AT_ONCE
    readers[0].link.end()
    readers[-1].link.end()
    # A read that begins in the new role is not dismissed with those of the old one.
    consumer.send(("pond", 0, 0), max_wait_ms=60_000)
    consumer.server.run(100)
    assert all(len(reader.replies()) == 1 for reader in readers[1:-1])
    left = 1 if change == "role" else 0
    assert (len(consumer.server.broker.pending_fetches), len(consumer.pond.watchers)) == (left, left)


def test_very_many_whose_time_is_over_at_once_are_answered_in_turns(consumer: ConsumerAndBroker) -> None:
    pending = consumer.server.broker.pending_fetches
    waits: list[Any] = []
    pending._turns.wait = waits.append
    for _ in range(FEW + 1):
        consumer.send(("pond", 0, 0))
    consumer.server.run(500)
    assert (len(waits), consumer.answers()) == (FEW + 1, [])
    # A fetch that was about to get an empty response takes what has arrived since.
    consumer.append(b"a")
    for each in waits:
        each()
    consumer.server.run(1)
    assert consumer.answers() == [{"pond-0": [b"a"]}] * (FEW + 1)
    assert (len(pending), consumer.watchers()) == (0, 0)


def test_readers_that_go_away_are_not_counted_any_more(consumer: ConsumerAndBroker) -> None:
    for _ in range(3):
        consumer.send(("pond", 0, 0))
    assert len(consumer.server.broker.pending_fetches) == 3
    consumer.reader.link.end()
    assert len(consumer.server.broker.pending_fetches) == 0


# Files.


def test_files_are_given_back_once_the_answer_has_left(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.reader.link.stuck = True
    consumer.send(("pond", 0, 0))
    assert consumer.holds() == 1
    consumer.reader.link.read_all()
    assert (consumer.answers(), consumer.holds()) == ([{"pond-0": [b"a"]}], 0)


def test_cold_ranges_are_read_by_a_worker_first(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.server.disk.cold_share = 1.0
    consumer.send(("pond", 0, 0))
    assert (consumer.answers(), consumer.holds()) == ([], 1)
    consumer.server.run(20)
    assert (consumer.answers(), consumer.holds()) == ([{"pond-0": [b"a"]}], 0)


def test_what_is_warmed_after_waiting_is_answered_once(consumer: ConsumerAndBroker) -> None:
    consumer.server.disk.cold_share = 1.0
    consumer.send(("pond", 0, 0), max_wait_ms=1)
    consumer.append(b"a")
    assert (consumer.answers(), consumer.watchers()) == ([], 0)
    consumer.append(b"b")
    consumer.server.run(100)
    assert consumer.answers() == [{"pond-0": [b"a"]}], "as it was when the worker began"
    assert consumer.holds() == 0


def test_a_reader_that_goes_away_while_a_worker_reads_holds_nothing(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.server.disk.cold_share = 1.0
    consumer.send(("pond", 0, 0))
    consumer.reader.link.end()
    consumer.server.run(100)
    assert consumer.holds() == 0


def test_a_disk_that_cannot_be_read_is_told(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.server.disk.cold_share = 1.0
    consumer.send(("pond", 0, 0))
    consumer.server.disk.fail_reads("pond-0")
    consumer.server.run(100)
    (reply,) = consumer.reader.replies()
    assert reply.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert consumer.holds() == 0


# Sessions.


def test_a_session_tells_only_news(consumer: ConsumerAndBroker) -> None:
    consumer.append(b"a")
    consumer.send(("pond", 0, 0), ("pond", 1, 0), session_epoch=0)
    (first,) = consumer.reader.replies()
    session = first.session_id
    assert session > 0
    consumer.send(("pond", 0, 1), session_id=session, session_epoch=1)
    consumer.append(b"b")
    assert consumer.answers() == [{"pond-0": [b"b"]}]
    consumer.send(("pond", 0, 2), session_id=session, session_epoch=2)
    consumer.server.run(500)
    assert consumer.answers() == [{}]
    consumer.send(session_id=session, session_epoch=2)
    (refused,) = consumer.reader.replies()
    assert (refused.error_code, refused.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)


def test_a_reader_that_does_not_wait_for_its_answers_may_forget_what_it_asked_for(
    consumer: ConsumerAndBroker,
) -> None:
    consumer.send(("pond", 0, 0), ("pond", 1, 0), session_epoch=0, max_wait_ms=0)
    (first,) = consumer.reader.replies()
    consumer.send(session_id=first.session_id, session_epoch=1)
    forgotten = [m.FetchRequest.ForgottenTopic(topic="pond", partitions=[0])]
    consumer.send(session_id=first.session_id, session_epoch=2, forgotten_topics_data=forgotten)
    # The producer must not pay for it.
    consumer.append(b"a")
    consumer.append(b"b", index=1)
    assert consumer.answers() == [{"pond-0": [b"a"]}, {"pond-1": [b"b"]}]


# Aborted transactions.


def abort(consumer: ConsumerAndBroker, index: int, producers: range, *, at_once: bool) -> None:
    """A transaction of each producer, aborted before the next begins or once all have begun."""
    partition = consumer.server.broker.partitions.get("pond", index)
    for producer_id in producers:
        permit = permitted(partition.log.producers, producer_id, 0, 0, consumer.server.broker.clock.wall_ms())
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        partition.append(consumer.batch(b"aborted", **fields), zstd=True, verification=permit)
        if not at_once:
            partition.append_marker(producer_id, 0, False, 0, 0)
    for producer_id in producers if at_once else ():
        partition.append_marker(producer_id, 0, False, 0, 0)


def read_all(consumer: ConsumerAndBroker, count_max: int) -> list[Any]:
    """Read both partitions to their ends as a read_committed consumer does, and return the values in their order."""
    offsets, values = [0, 0], []
    while True:
        consumer.send(("pond", 0, offsets[0]), ("pond", 1, offsets[1]), isolation_level=1, max_wait_ms=0)
        (reply,) = consumer.reader.replies()
        partitions = [partition for topic in reply.responses for partition in topic.partitions]
        assert sum(len(each.aborted_transactions) for each in partitions) <= count_max
        moved = False
        for partition in partitions:
            data, aborted = bytes(partition.records or b""), partition.aborted_transactions
            ended: set[int] = set()
            for position, header in walk(data):
                moved = True
                offsets[partition.partition_index] = header.base_offset + header.last_offset_delta + 1
                if header.is_control:
                    ended.add(header.producer_id)
                elif header.producer_id in ended or all(header.producer_id != each.producer_id for each in aborted):
                    values += [record.value for record in decode_batch(data, position)]
        if not moved:
            return values


@pytest.mark.parametrize("at_once", [False, True])
def test_a_response_has_a_limited_number_of_aborted_transactions(consumer: ConsumerAndBroker, at_once: bool) -> None:
    """Ten thousand of them held the loop for 50 ms at each fetch."""
    for index in range(2):
        consumer.append(b"first", index=index)
        for first in range(1_000, 4_000, 300):
            abort(consumer, index, range(first, first + 300), at_once=at_once)
            consumer.append(b"between", index=index)
    values = read_all(consumer, 3 * ABORTED_MAX)
    assert sorted(values) == [b"between"] * 20 + [b"first"] * 2
    assert consumer.holds() == 0


def test_more_aborted_transactions_than_the_limit_that_overlap_are_all_listed(consumer: ConsumerAndBroker) -> None:
    abort(consumer, 0, range(1_000, 1_000 + 3 * ABORTED_MAX), at_once=True)
    consumer.append(b"after")
    assert read_all(consumer, 3 * ABORTED_MAX) == [b"after"]
