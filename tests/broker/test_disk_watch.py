"""A disk that fills up is logged: in advance, while writes are refused, and when it recovers."""

from __future__ import annotations

from typing import Any

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def told(server: Any, what: str) -> list[str]:
    return [line for line in server.node.journal_lines if what in line]


def produce(caller: Any, make_batch: Any) -> Any:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=make_batch(b"v" * 1000))
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    reply = caller.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    return reply.responses[0].partition_responses[0]


def test_a_full_disk_is_told_once_and_then_counted(server: Any, make_batch: Any) -> None:
    server.create("pond", 1)
    caller = server.connect()
    server.disk.fill()
    for _ in range(50):
        refused = produce(caller, make_batch)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left on device" in refused.error_message
    (first,) = told(server, "writes are refused, this node cannot write")
    assert "batches=1" in first
    assert "No space left on device" in first
    server.run(11_000)
    assert len(told(server, "the disk is nearly full")) == 1
    (more,) = told(server, "writes are still refused")
    assert "batches=49" in more
    assert not told(server, "no write is refused any more")
    server.run(30_000)
    assert not told(server, "no write is refused any more"), "without a write, and with the disk still full"
    server.disk.make_room()
    server.run(1_000)
    assert produce(caller, make_batch).error_code == 0, "it goes on by itself"
    server.run(25_000)
    (end,) = told(server, "no write is refused any more")
    assert "refused_meanwhile=50" in end
    assert len(told(server, "writes are")) == 2
    assert len(told(server, "the disk has room again")) == 1


def test_the_low_water_mark_is_a_setting(make_server: Any) -> None:
    server = make_server({"disk.low.water.bytes": "0"})
    server.disk.fill()
    server.run(11_000)
    assert not told(server, "the disk")
