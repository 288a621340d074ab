"""Batches are written once and in order, despite failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.client.errors import Fenced, SendFailed
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import latest
from millpond.remote.reader import read_records
from millpond.remote.transactions import Fate, end, fate, init_producer
from millpond.remote.writer import BatchWriter
from millpond.wire import messages as m
from millpond.wire.batch import read_header
from millpond.wire.compression import ZSTD
from millpond.wire.records import Record
from support.node import Node
from support.raw import Raw
from support.raw_transactions import committed_values
from support.topics import create_topic


def append(writer: BatchWriter, partition: TopicPartition, values: list[bytes]) -> None:
    now_ms = int(time.time() * 1000)
    writer.append_records(partition, [Record(0, now_ms, None, value) for value in values])


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.smoke
@pytest.mark.parametrize(("acks", "codec"), [(-1, 0), (-1, ZSTD), (1, 0)])
def test_everything_is_there_once_and_in_order(node: Node, topic: str, acks: int, codec: int) -> None:
    create_topic(node.bootstrap, topic, 3)
    with (
        Cluster({"bootstrap.servers": node.bootstrap}) as cluster,
        # Small limits, so that many requests are in flight and the writer must wait.
        BatchWriter(cluster, acks=acks, codec=codec, buffer_bytes=4_000, request_bytes=1_000) as writer,
    ):
        for first in range(0, 3_000, 10):
            append(writer, TopicPartition(topic, first % 3), numbered(first, 10))
        writer.flush()
        assert set(writer.first_offsets.values()) == {0}
        with Raw(node.port) as raw:
            for partition in range(3):
                expected = [v for first in range(0, 3_000, 10) if first % 3 == partition for v in numbered(first, 10)]
                assert committed_values(raw, topic, partition) == expected


def test_crashes_of_the_node_do_not_lose_duplicate_or_reorder_records(
    make_node: Callable[..., Node], topic: str
) -> None:
    node = make_node()
    create_topic(node.bootstrap, topic, 2)
    batches: list[list[bytes]] = []
    enough = threading.Event()

    def write() -> None:
        with (
            Cluster({"bootstrap.servers": node.bootstrap}) as cluster,
            BatchWriter(cluster, request_bytes=1) as writer,
        ):
            while not enough.is_set():
                batches.append(numbered(len(batches) * 10, 10))
                append(writer, TopicPartition(topic, len(batches) % 2), batches[-1])
            writer.flush()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        # A node exits with the thread that started it, so this thread kills it.
        for _ in range(3):
            time.sleep(0.4)
            node.restart(crash=True)
        enough.set()
        writing.result()
    with Raw(node.port) as raw:
        for partition in range(2):
            expected = [value for batch in batches[1 - partition :: 2] for value in batch]
            assert committed_values(raw, topic, partition) == expected


@pytest.mark.smoke
def test_a_transaction_is_visible_once_it_is_committed(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, Raw(node.port) as raw:
        identity = init_producer(cluster, f"{topic}-t", 60_000)
        with BatchWriter(cluster, transactional=identity) as writer:
            append(writer, partition, [b"a", b"b"])
            writer.flush()
            assert writer.first_offsets == {partition: 0}
        assert committed_values(raw, topic) == []
        assert fate(cluster, identity, partition, 0) is Fate.PENDING
        end(cluster, identity, commit=True)
        assert committed_values(raw, topic) == [b"a", b"b"]


def test_a_fenced_writer_gets_an_error(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        older = init_producer(cluster, f"{topic}-t", 60_000)
        with BatchWriter(cluster, transactional=older) as writer:
            append(writer, TopicPartition(topic, 0), [b"a"])
            writer.flush()
            init_producer(cluster, f"{topic}-t", 60_000)
            append(writer, TopicPartition(topic, 0), [b"b"])
            with pytest.raises(Fenced, match="taken over"):
                writer.flush()


def test_a_gap_in_the_sequence_is_reported(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, BatchWriter(cluster) as writer:
        append(writer, TopicPartition(topic, 0), [b"a"])
        writer.flush()
        writer._queues[TopicPartition(topic, 0)].next_sequence = 7
        append(writer, TopicPartition(topic, 0), [b"h"])
        with pytest.raises(SendFailed, match="lost track of this producer") as caught:
            writer.flush()
        assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unreachable_node_ends_the_wait(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    create_topic(node.bootstrap, topic, 1)
    settings = {"bootstrap.servers": node.bootstrap, "default.api.timeout.ms": "300"}
    with Cluster(settings) as cluster, BatchWriter(cluster, delivery_seconds=0.3) as writer:
        append(writer, TopicPartition(topic, 0), [b"a"])
        writer.flush()
        node.kill9()
        append(writer, TopicPartition(topic, 0), [b"b"])
        with pytest.raises(Exception, match=r"no broker answers|has not acknowledged"):
            writer.flush()


def test_a_batch_that_is_too_large_is_refused_with_advice(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1, {"max.message.bytes": "1000"})
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, BatchWriter(cluster) as writer:
        append(writer, TopicPartition(topic, 0), [b"x" * 2_000])
        with pytest.raises(Exception, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
            writer.flush()


@pytest.mark.parametrize("wrong", [{"acks": 0}, {"acks": 1, "transactional": ("t", 1, 0)}])
def test_settings_without_acknowledgements_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="acks"):
        BatchWriter(Cluster({}), **wrong)  # type: ignore[arg-type]


class ScriptedBroker:
    """A scripted broker, which is also the cluster and the connection."""

    def __init__(self, *answers: ErrorCode) -> None:
        self.answers = list(answers)
        self.sequences: list[int] = []
        self.waiting: list[list[tuple[str, int]]] = []
        self.waiting_when_sent: list[int] = []

    def any(self) -> ScriptedBroker:
        return self

    def leader(self, topic: str, partition: int) -> ScriptedBroker:
        return self

    def forget(self, topic: str) -> None:
        pass

    def close(self) -> None:
        pass

    def retrying(self, what: str, action: Callable[[], object]) -> object:
        return action()

    def ask(self, request: m.Message, answer: type[m.Message]) -> m.Message:
        return m.InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)

    def send(self, request: m.ProduceRequest, answer: type[m.Message], *, newest: int) -> None:
        assert newest == 11
        self.waiting_when_sent.append(len(self.waiting))
        requests = []
        for topic in request.topic_data:
            for each in topic.partition_data:
                self.sequences.append(read_header(each.records).base_sequence)  # type: ignore[arg-type]
                requests.append((topic.name, each.index))
        self.waiting.append(requests)

    def receive(self, answer: type[m.Message]) -> m.ProduceResponse:
        topic, index = self.waiting.pop(0)[0]
        code = self.answers.pop(0) if self.answers else ErrorCode.NONE
        kind = m.ProduceResponse
        partition = kind.PartitionProduceResponse(index=index, error_code=code, base_offset=0)
        return kind(
            responses=[kind.TopicProduceResponse(name=topic, partition_responses=[partition])], throttle_time_ms=0
        )


def scripted(broker: ScriptedBroker, batches: int) -> None:
    with BatchWriter(cast(Cluster, broker), request_bytes=1) as writer:
        for number in range(batches):
            append(writer, TopicPartition("t", 0), [b"%d" % number])
        writer.flush()


def test_batches_after_a_failed_one_are_resent_in_order() -> None:
    gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    broker = ScriptedBroker(ErrorCode.NOT_LEADER_OR_FOLLOWER, gap, gap)
    scripted(broker, 3)
    assert broker.sequences == [0, 1, 2, 0, 1, 2]
    # Nothing is resent while a response is outstanding, to keep the order.
    assert broker.waiting_when_sent[3] == 0


def test_stored_batches_are_not_resent() -> None:
    broker = ScriptedBroker(ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    scripted(broker, 3)
    assert broker.sequences == [0, 1, 2, 1, 2]


def test_a_duplicate_batch_counts_as_stored() -> None:
    broker = ScriptedBroker(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    scripted(broker, 1)
    assert broker.sequences == [0, 0]


def test_at_most_as_many_are_in_flight_as_a_broker_remembers() -> None:
    broker = ScriptedBroker()
    scripted(broker, 20)
    assert broker.sequences == list(range(20))
    assert max(broker.waiting_when_sent) == 4


def test_a_gap_at_the_oldest_batch_is_an_error() -> None:
    with pytest.raises(SendFailed, match="lost track of this producer"):
        scripted(ScriptedBroker(ErrorCode.NONE, ErrorCode.UNKNOWN_PRODUCER_ID), 2)


def test_a_new_leader_gets_batches_after_the_old_one_has_answered() -> None:
    older, newer = ScriptedBroker(), ScriptedBroker()
    with BatchWriter(cast(Cluster, older), request_bytes=1) as writer:
        append(writer, TopicPartition("t", 0), [b"0"])
        older.leader = lambda *_: newer  # type: ignore[method-assign]
        append(writer, TopicPartition("t", 0), [b"1"])
        assert newer.sequences == []
        writer.flush()
    assert (older.sequences, newer.sequences) == ([0], [1])


def test_several_transactions_of_one_identity_and_records_that_need_several_batches(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        identity = init_producer(cluster, f"{topic}-t", 60_000)
        with BatchWriter(cluster, transactional=identity) as writer:
            for turn, commit in enumerate((True, False, True)):
                writer.begin_transaction()
                large = [Record(0, 1_000 + turn, None, b"%d" % turn + bytes(400_000)) for _ in range(5)]
                writer.append_records(zero, large)
                writer.append_records(one, [Record(0, 1_000, b"k", b"%d" % turn, (("h", None),))])
                writer.flush()
                end(cluster, identity, commit=commit)
        ends = {each: latest(cluster, [each], "read_committed")[each] for each in (zero, one)}
        large_ones = list(read_records(cluster, zero, 0, ends[zero], isolation="read_committed"))
        assert [(each.value or b"")[:1] for each in large_ones] == [b"0"] * 5 + [b"2"] * 5
        assert {each.timestamp for each in large_ones} == {1_000, 1_002}
        small_ones = list(read_records(cluster, one, 0, ends[one], isolation="read_committed"))
        assert [(each.key, each.value, each.headers) for each in small_ones] == [
            (b"k", b"0", (("h", None),)), (b"k", b"2", (("h", None),))
        ]  # fmt: skip
