"""Batches written once and in order, whatever breaks between us and the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition as Place
from millpond.client.cluster.cluster import Cluster
from millpond.client.cluster.transacting import Fate, end, fate, init_producer
from millpond.client.cluster.writing import BatchWriter
from millpond.client.errors import Fenced, SendFailed
from millpond.wire import kernel
from millpond.wire.compression import ZSTD
from support.node import Node
from support.raw import Raw
from support.raw_transactions import committed_values
from support.topics import create_topic


def payload(values: list[bytes]) -> bytes:
    """A records section of values without keys."""
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    offsets = b"".join(each.to_bytes(4, "little") for each in ends)
    column = kernel.BinaryColumn(0, offsets, b"".join(values))
    selection = b"".join(row.to_bytes(4, "little") for row in range(len(values)))
    rows = kernel.RowColumns(len(values), None, column)
    return bytes(kernel.encode_rows(rows, selection, 0, 1 << 30, 0).payload)


def append(writer: BatchWriter, place: Place, values: list[bytes]) -> None:
    now_ms = int(time.time() * 1000)
    writer.append(place, payload(values), len(values), now_ms, now_ms)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize(("acks", "codec"), [(-1, 0), (-1, ZSTD), (1, 0)])
def test_everything_is_there_once_and_in_order(node: Node, topic: str, acks: int, codec: int) -> None:
    create_topic(node.bootstrap, topic, 3)
    with (
        Cluster({"bootstrap.servers": node.bootstrap}) as cluster,
        # Small limits, so that many requests are on their way and the writer has to wait for room.
        BatchWriter(cluster, acks=acks, codec=codec, buffer_bytes=4_000, request_bytes=1_000) as writer,
    ):
        for first in range(0, 3_000, 10):
            append(writer, Place(topic, first % 3), numbered(first, 10))
        writer.flush()
        assert set(writer.first_offsets.values()) == {0}
        with Raw(node.port) as raw:
            for partition in range(3):
                expected = [v for first in range(0, 3_000, 10) if first % 3 == partition for v in numbered(first, 10)]
                assert committed_values(raw, topic, partition) == expected


def test_crashes_of_the_node_lose_double_and_reorder_nothing(make_node: Callable[..., Node], topic: str) -> None:
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
                append(writer, Place(topic, len(batches) % 2), batches[-1])
            writer.flush()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        # A node ends with the thread that started it, so this thread does the killing.
        for _ in range(3):
            time.sleep(0.4)
            node.restart(crash=True)
        enough.set()
        writing.result()
    with Raw(node.port) as raw:
        for partition in range(2):
            expected = [value for batch in batches[1 - partition :: 2] for value in batch]
            assert committed_values(raw, topic, partition) == expected


def test_a_transaction_shows_when_it_is_committed(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    place = Place(topic, 0)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, Raw(node.port) as raw:
        identity = init_producer(cluster, f"{topic}-t", 60_000)
        with BatchWriter(cluster, transactional=identity) as writer:
            append(writer, place, [b"a", b"b"])
            writer.flush()
            assert writer.first_offsets == {place: 0}
        assert committed_values(raw, topic) == []
        assert fate(cluster, identity, place, 0) is Fate.PENDING
        end(cluster, identity, commit=True)
        assert committed_values(raw, topic) == [b"a", b"b"]


def test_who_was_fenced_is_told(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster:
        older = init_producer(cluster, f"{topic}-t", 60_000)
        with BatchWriter(cluster, transactional=older) as writer:
            append(writer, Place(topic, 0), [b"a"])
            writer.flush()
            init_producer(cluster, f"{topic}-t", 60_000)
            append(writer, Place(topic, 0), [b"b"])
            with pytest.raises(Fenced, match="taken over"):
                writer.flush()


def test_a_gap_in_the_sequence_is_said_to_be_one(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1)
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, BatchWriter(cluster) as writer:
        append(writer, Place(topic, 0), [b"a"])
        writer.flush()
        writer._lanes[Place(topic, 0)].next_sequence = 7
        append(writer, Place(topic, 0), [b"h"])
        with pytest.raises(SendFailed, match="lost track of this producer") as caught:
            writer.flush()
        assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_node_that_stays_away_ends_the_wait(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    create_topic(node.bootstrap, topic, 1)
    settings = {"bootstrap.servers": node.bootstrap, "default.api.timeout.ms": "300"}
    with Cluster(settings) as cluster, BatchWriter(cluster, delivery_seconds=0.3) as writer:
        append(writer, Place(topic, 0), [b"a"])
        writer.flush()
        node.kill9()
        append(writer, Place(topic, 0), [b"b"])
        with pytest.raises(Exception, match=r"no broker answers|has not acknowledged"):
            writer.flush()


def test_a_batch_that_is_too_large_is_refused_with_advice(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic, 1, {"max.message.bytes": "1000"})
    with Cluster({"bootstrap.servers": node.bootstrap}) as cluster, BatchWriter(cluster) as writer:
        append(writer, Place(topic, 0), [b"x" * 2_000])
        with pytest.raises(Exception, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
            writer.flush()


@pytest.mark.parametrize("wrong", [{"acks": 0}, {"acks": 1, "transactional": ("t", 1, 0)}])
def test_what_cannot_be_flushed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="acks"):
        BatchWriter(Cluster({}), **wrong)  # type: ignore[arg-type]
