"""Three brokers, each leading some partitions, also after a move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.reader import read_range
from millpond.remote.writer import BatchWriter
from millpond.wire import kernel
from millpond.wire.records import Record
from support.mock_cluster import MockCluster

LEADERS = [1, 2, 3, 3, 2, 1]
PLACES = [TopicPartition("shared", partition) for partition in range(len(LEADERS))]
BATCHES = 40
BATCH = 5


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as running:
        running.create_topic("shared", LEADERS)
        yield running


@pytest.fixture
def cluster(mock: MockCluster) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": mock.bootstrap, "default.api.timeout.ms": "15000"}) as connected:
        yield connected


def write(cluster: Cluster, partitions: list[TopicPartition], disturb: dict[int, object] | None = None) -> None:
    """Write ascending numbers to all partitions; `disturb` is called before some batches."""
    now_ms = int(time.time() * 1000)
    with BatchWriter(cluster, request_bytes=1) as writer:
        for batch in range(BATCHES):
            if disturb and batch in disturb:
                disturb[batch]()  # type: ignore[operator]
            values = [b"%06d" % number for number in range(batch * BATCH, (batch + 1) * BATCH)]
            for partition in partitions:
                writer.append_records(partition, [Record(0, now_ms, None, value) for value in values])
        writer.flush()


def numbers(cluster: Cluster, partition: TopicPartition, disturb: dict[int, object] | None = None) -> list[int]:
    result: list[int] = []
    end = offsets.latest(cluster, [partition])[partition]
    for count, (header, data) in enumerate(read_range(cluster, partition, 0, end, fetch_bytes=200)):
        if disturb and count in disturb:
            disturb[count]()  # type: ignore[operator]
        decoded = kernel.decode_records(data, header.record_count, header.base_offset, header.base_timestamp, None)
        result += [int(value or b"") for _, _, _, value, _ in decoded]
    return result


EXPECTED = list(range(BATCHES * BATCH))


def test_each_leader_serves_its_partitions(mock: MockCluster, cluster: Cluster) -> None:
    assert [cluster.topic("shared").partitions[partition.partition].leader for partition in PLACES] == LEADERS
    assert len({cluster.leader(*partition).address for partition in PLACES}) == 3
    write(cluster, PLACES)
    assert offsets.earliest(cluster, PLACES) == dict.fromkeys(PLACES, 0)
    assert offsets.latest(cluster, PLACES) == dict.fromkeys(PLACES, BATCHES * BATCH)
    for partition in PLACES:
        assert numbers(cluster, partition) == EXPECTED


def test_a_leader_that_moves_is_followed(mock: MockCluster, cluster: Cluster) -> None:
    partition = PLACES[0]
    moves = {10: lambda: mock.move("shared", 0, 2), 20: lambda: mock.move("shared", 0, 3)}
    write(cluster, [partition, PLACES[1]], moves)
    assert numbers(cluster, PLACES[1]) == EXPECTED
    back = {5: lambda: mock.move("shared", 0, 1), 25: lambda: mock.move("shared", 0, 2)}
    assert numbers(cluster, partition, back) == EXPECTED
    mock.move("shared", 0, 1)
    assert offsets.latest(cluster, PLACES) == {each: (each.partition < 2) * BATCHES * BATCH for each in PLACES}


def test_a_broker_that_is_down_for_a_while_is_awaited(mock: MockCluster, cluster: Cluster) -> None:
    def another_leads() -> None:
        mock.down(1)
        mock.move("shared", 0, 2)

    write(cluster, [PLACES[0]], {15: another_leads})
    # The mock ignores sequence numbers, so batches in flight may be duplicated, but none is missing.
    written = numbers(cluster, PLACES[0])
    assert list(dict.fromkeys(written)) == EXPECTED

    def nobody_leads() -> None:
        mock.down(2)
        threading.Timer(0.7, lambda: mock.up(2)).start()

    assert numbers(cluster, PLACES[0], {10: nobody_leads}) == written


def test_a_moved_coordinator_is_found_again(mock: MockCluster, cluster: Cluster) -> None:
    for broker in (3, 1):
        mock.move_coordinator("group", "readers", broker)
        offsets.commit_group(cluster, "readers", {PLACES[0]: broker})
    mock.down(1)
    mock.move_coordinator("group", "readers", 2)
    offsets.commit_group(cluster, "readers", {PLACES[0]: 7})
