"""A process with a low limit on open files serves far more partitions and segments than that."""

from __future__ import annotations

import contextlib
import time

import psutil
import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch
from support.node import eventually
from support.raw import Raw

DESCRIPTORS = 160
COUNT = 250
SEGMENT = {"segment_bytes": "16384"}


def values(number):
    return [encode_batch([Record(0, 1000 + turn, b"k", b"%d " % number + b"v" * 9000)]) for turn in range(3)]


def produce_everywhere(raw, topic, batches, acks=1):
    """One request for all partitions; those with a retriable error are sent again."""
    left = dict(enumerate(batches))
    for _ in range(30):
        data = [m.ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in left.items()]
        topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
        reply = raw.call(m.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics), 9)
        for result in reply.responses[0].partition_responses:
            assert result.error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR), result
            if not result.error_code:
                del left[result.index]
        if not left:
            return
        # As clients do.
        time.sleep(0.1)
    raise AssertionError(f"{len(left)} partitions never took it")


def offsets_at(raw, topic, timestamp):
    partitions = [
        m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(COUNT)
    ]
    topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)]
    results = raw.call(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7).topics[0].partitions
    return [(each.error_code, each.offset) for each in results]


def read_everything(raw, topic):
    """The number of records in each partition, fetched until nothing is left."""
    offsets = dict.fromkeys(range(COUNT), 0)
    for _ in range(500):
        kind = m.FetchRequest
        partitions = [
            kind.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in offsets.items()
            if offset < 3
        ]
        if not partitions:
            return offsets
        request = kind(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=-1,
            topics=[kind.FetchTopic(topic=topic, partitions=partitions)],
        )
        for part in raw.call(request, 11).responses[0].partitions:
            assert part.error_code == ErrorCode.NONE
            data, position = bytes(part.records or b""), 0
            while position + 61 <= len(data):
                position += int.from_bytes(data[position + 8 : position + 12], "big") + 12
                if position <= len(data):
                    offsets[part.partition_index] += 1
    raise AssertionError(f"{sum(offset < 3 for offset in offsets.values())} partitions were never read")


@pytest.mark.parametrize("ending", ["clean", "crash"])
def test_many_partitions_are_served_with_few_descriptors(make_node, topic, ending):
    node = make_node(
        {"log.flush.offset.checkpoint.interval.ms": "500"}, environment={"DESCRIPTORS": str(DESCRIPTORS)}
    )
    with Raw(node.port) as raw:
        raw.create_topic(topic, COUNT, **SEGMENT)
        for turn in range(3):
            produce_everywhere(raw, topic, [values(index)[turn] for index in range(COUNT)])
        use(node, raw, topic)
    if ending == "clean":
        assert node.terminate() == 0
        node.start()
    else:
        node.restart(crash=True)
    with Raw(node.port) as raw:
        use(node, raw, topic)
    assert "Too many open files" not in node.journal()
    assert "closed" not in node.journal()


def use(node, raw, topic):
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(Raw(node.port)) for _ in range(40)]
        assert offsets_at(raw, topic, 1001) == [(0, 1)] * COUNT
        assert offsets_at(raw, topic, -3) == [(0, 2)] * COUNT
        assert set(read_everything(raw, topic).values()) == {3}
        for other in others:
            assert other.call(m.ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        assert psutil.Process(node.pid).num_fds() < DESCRIPTORS
    points = node.data / "recovery-point-offset-checkpoint"
    eventually(lambda: points.read_text().count(f"{topic} ") == COUNT and f"{topic} 0 3" in points.read_text())


def test_more_partitions_than_descriptors_can_bear_are_refused_with_a_reason(make_node, topic):
    node = make_node(environment={"DESCRIPTORS": "96"})
    with Raw(node.port) as raw:
        wanted = m.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=2000, replication_factor=1)
        reply = raw.call(m.CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 5).topics[0]
        assert reply.error_code == ErrorCode.POLICY_VIOLATION
        assert "max.partitions=1536" in reply.error_message
        raw.create_topic(topic, 50)
    node.wait_for_word("raise `ulimit -n`")
