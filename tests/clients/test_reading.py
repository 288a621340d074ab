"""Where consumers begin: the ends of the log, a timestamp, a deleted offset, new partitions."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from millpond.wire import messages as m
from support.raw import Raw, batch


@pytest.fixture
def consumer(node):
    made = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        }
    )
    yield made
    made.close()


@pytest.fixture
def python_consumer(node):
    made = KafkaConsumer(
        bootstrap_servers=node.bootstrap, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=100
    )
    yield made
    made.close()


def numbers(raw, topic, count=10, stamp=None):
    """One batch for each number; with a timestamp, each is a second later than the one before."""
    for number in range(count):
        timestamp = None if stamp is None else stamp + number * 1000
        raw.produce(topic, 0, batch(b"%d" % number, timestamp=timestamp), acks=1)


def until_the_end(consumer):
    """The offsets of all records before the consumer reports the end of the partition."""
    result = []
    while True:
        message = consumer.poll(10)
        assert message is not None, "neither a record nor the end"
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return result
        result.append(message.offset())


def give_up_before(raw, topic, offset):
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])]
    raw.call(m.DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2)


def test_from_the_beginning_from_the_end_and_from_the_middle(raw, topic, consumer):
    raw.create_topic(topic)
    numbers(raw, topic)
    for start, expected in ((OFFSET_BEGINNING, list(range(10))), (OFFSET_END, []), (4, [4, 5, 6, 7, 8, 9])):
        consumer.assign([TopicPartition(topic, 0, start)])
        assert until_the_end(consumer) == expected
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0)) == (0, 10)


def test_an_offset_that_is_gone_leads_to_the_new_start(raw, topic, consumer):
    raw.create_topic(topic)
    numbers(raw, topic)
    give_up_before(raw, topic, 6)
    consumer.assign([TopicPartition(topic, 0, 2)])
    assert until_the_end(consumer) == [6, 7, 8, 9]
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0)) == (6, 10)


def test_an_offset_beyond_the_end_leads_to_the_start(raw, topic, consumer):
    raw.create_topic(topic)
    numbers(raw, topic, 3)
    consumer.assign([TopicPartition(topic, 0, 500)])
    assert until_the_end(consumer) == [0, 1, 2]


def test_a_moment_in_time_is_found(raw, topic, consumer, python_consumer):
    raw.create_topic(topic)
    began = time.time_ns() // 1_000_000 - 60_000
    numbers(raw, topic, stamp=began)
    for moment, expected in ((began - 5, 0), (began, 0), (began + 3500, 4), (began + 9000, 9)):
        (position,) = consumer.offsets_for_times([TopicPartition(topic, 0, moment)], timeout=10)
        assert position.offset == expected
        topic_partition = PythonTopicPartition(topic, 0)
        assert python_consumer.offsets_for_times({topic_partition: moment})[topic_partition].offset == expected
    (position,) = consumer.offsets_for_times([TopicPartition(topic, 0, began + 9001)], timeout=10)
    assert position.offset in (OFFSET_END, 10), "after the last record only the end is left"


def test_kafka_python_knows_the_ends(raw, topic, python_consumer):
    raw.create_topic(topic)
    numbers(raw, topic)
    give_up_before(raw, topic, 3)
    topic_partition = PythonTopicPartition(topic, 0)
    assert python_consumer.beginning_offsets([topic_partition]) == {topic_partition: 3}
    assert python_consumer.end_offsets([topic_partition]) == {topic_partition: 10}
    python_consumer.assign([topic_partition])
    python_consumer.seek(topic_partition, 0)
    result = []
    while len(result) < 7:
        polled = python_consumer.poll(timeout_ms=10_000)
        assert polled
        result += [each.offset for each in polled[topic_partition]]
    assert result == [3, 4, 5, 6, 7, 8, 9]


def test_aiokafka_is_reset_too(node, raw, topic):
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as AioTopicPartition

    raw.create_topic(topic)
    numbers(raw, topic)
    give_up_before(raw, topic, 8)

    async def read():
        async with AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap, group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            topic_partition = AioTopicPartition(topic, 0)
            consumer.assign([topic_partition])
            consumer.seek(topic_partition, 1)
            return [(await consumer.getone(topic_partition)).offset for _ in range(2)]

    assert asyncio.run(asyncio.wait_for(read(), 20)) == [8, 9]


def test_a_waiting_consumer_gets_what_is_written_next(node, raw, topic, consumer):
    raw.create_topic(topic)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert until_the_end(consumer) == []

    def write():
        with Raw(node.port) as other:
            numbers(other, topic, 100)

    writer = threading.Thread(target=write)
    writer.start()
    result = []
    while len(result) < 100:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            result.append(int(message.value()))
    writer.join()
    assert result == list(range(100))


def test_partitions_that_are_added_are_read(raw, topic, consumer):
    raw.create_topic(topic)
    wanted = m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=3, assignments=None)
    raw.call(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=1000), 3)
    raw.produce(topic, 2, batch(b"new"))
    consumer.assign([TopicPartition(topic, 2, 0)])
    assert until_the_end(consumer) == [0]


def test_a_reader_of_a_recreated_topic_gets_no_old_records(raw, topic, consumer):
    raw.create_topic(topic)
    numbers(raw, topic)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(until_the_end(consumer)) == 10
    raw.call(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 5)
    raw.create_topic(topic)
    raw.produce(topic, 0, batch(b"fresh"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + 60
    values = []
    while not values and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value())
    assert values == [b"fresh"]
