"""Real disks that are full: a node restarts and frees space, and a producer with short timeouts writes duplicates."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from millpond.testing import Pond, ponds
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch
from support.cluster_disks import DISK_BYTES, Disks
from support.patience import with_time


def test_a_single_node_restarts_on_a_full_disk_and_makes_room(tmp_path: Path) -> None:
    with Disks(tmp_path, 1).in_use() as disks:
        if not disks.can_fill:
            pytest.skip(disks.reasons["a full disk"])
        settings = {"disk.reserve.bytes": 1 << 20}
        with Pond(folder=tmp_path / "node-1", settings=settings, mode="process") as pond:
            pond.create_topic("orders")
            pond.create_topic("ballast")
            pond.produce("orders", b"kept")
            # Nothing else takes the space: the node's own records fill the disk.
            producer = Producer({"bootstrap.servers": pond.bootstrap, "message.timeout.ms": 4_000, "linger.ms": 5})
            refused: list[object] = []
            for _ in range(DISK_BYTES // 900_000 + 50):
                while not _sent(producer, refused):
                    producer.poll(0.1)
            producer.flush(30)
            assert refused
            pond.kill()
            pond.start()
            assert any("disk is full" in line for line in pond.journal)
            assert [record.value for record in pond.consume("orders", 1)] == [b"kept"]
            admin = AdminClient({"bootstrap.servers": pond.bootstrap})
            admin.delete_topics(["ballast"])["ballast"].result(20)
            _until(lambda: any("disk has room again" in line for line in pond.journal))
            pond.produce("orders", b"after")
            assert len(pond.consume("orders", 2)) == 2


def _sent(producer: Producer, refused: list[object]) -> bool:
    try:
        producer.produce(
            "ballast", os.urandom(900_000), on_delivery=lambda error, _: refused.append(error) if error else None
        )
    except BufferError:
        return False
    producer.poll(0)
    return True


def _until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@with_time
@pytest.mark.parametrize("timeout_ms", [4_000, 120_000])
def test_only_a_producer_whose_messages_time_out_writes_twice(tmp_path: Path, timeout_ms: int) -> None:
    """librdkafka begins a new producer epoch after a timeout, and resends what was in flight under it.

    The node detects a duplicate by its producer id, epoch and sequence: no record may appear twice in one epoch.
    """
    with Disks(tmp_path, 3).in_use() as disks, ponds(nodes=3, folder=tmp_path) as cluster:
        if not disks.can_fill:
            pytest.skip(disks.reasons["a full disk"])
        cluster.create_topic("orders", partitions=3)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": timeout_ms,
                "request.timeout.ms": 1_500,
                "linger.ms": 5,
            }
        )
        acknowledged: set[bytes] = set()
        sent = 0
        for is_full in (False, True, False, True, False):
            for node_id in (2, 3):
                (disks.fill if is_full else disks.make_room)(node_id)
            ends = time.monotonic() + (8 if is_full else 4)
            while time.monotonic() < ends:
                producer.produce(
                    "orders",
                    key=b"%d" % sent,
                    value=bytes(300),
                    on_delivery=lambda error, sent: None if error else acknowledged.add(sent.key()),
                )
                sent += 1
                producer.poll(0.005)
        producer.flush(60)
        cluster.kill_all()
        result = _places(tmp_path / "node-1")
        assert acknowledged <= result.keys()
        for key, places in result.items():
            assert len(set(places)) == len(places), f"{key!r} is there twice within one epoch: {places}"
        if timeout_ms > 60_000:
            assert all(len(places) == 1 for places in result.values())
            assert len(acknowledged) == sent


def _places(folder: Path) -> dict[bytes, list[tuple[int, int]]]:
    """The producer id and epoch under which each key was written."""
    result = defaultdict[bytes, list[tuple[int, int]]](list)
    for path in folder.glob("orders-*/*.log"):
        data = path.read_bytes()
        for position, header in walk(data):
            for record in decode_batch(data, position):
                result[record.key or b""].append((header.producer_id, header.producer_epoch))
    return result
