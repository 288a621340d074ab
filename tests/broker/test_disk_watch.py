"""A disk that fills up is logged: in advance, while writes are refused, and when it recovers."""

from __future__ import annotations

from typing import Any

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def told(desk: Any, what: str) -> list[str]:
    return [line for line in desk.node.journal_lines if what in line]


def produce(caller: Any, make_batch: Any) -> Any:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=make_batch(b"v" * 1000))
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    reply = caller.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    return reply.responses[0].partition_responses[0]


def test_a_full_disk_is_told_once_and_then_counted(desk: Any, make_batch: Any) -> None:
    desk.create("pond", 1)
    caller = desk.connect()
    desk.disk.fill()
    for _ in range(50):
        refused = produce(caller, make_batch)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left on device" in refused.error_message
    (first,) = told(desk, "writes are refused, this node cannot write")
    assert "batches=1" in first
    assert "No space left on device" in first
    desk.run(11_000)
    assert len(told(desk, "the disk is nearly full")) == 1
    (more,) = told(desk, "writes are still refused")
    assert "batches=49" in more
    assert not told(desk, "no write is refused any more")
    desk.run(30_000)
    assert not told(desk, "no write is refused any more"), "nobody writes, and there is still no room"
    desk.disk.make_room()
    desk.run(1_000)
    assert produce(caller, make_batch).error_code == 0, "it goes on by itself"
    desk.run(25_000)
    (end,) = told(desk, "no write is refused any more")
    assert "refused_meanwhile=50" in end
    assert len(told(desk, "writes are")) == 2
    assert len(told(desk, "the disk has room again")) == 1


def test_the_low_water_mark_is_a_setting(make_desk: Any) -> None:
    desk = make_desk({"disk.low.water.bytes": "0"})
    desk.disk.fill()
    desk.run(11_000)
    assert not told(desk, "the disk")
