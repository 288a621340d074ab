"""What we say of any Kafka cluster, shown on Apache Kafka itself: the client, the source, the sink, in the clear and
behind TLS and logins. Skipped where Maven Central does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millpond.base.ids import TopicPartition as Place
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.errors import LoginFailed, OffsetsGone
from millpond.remote.reader import read_range
from millpond.remote.transactions import end, init_producer, list_open
from millpond.remote.writer import BatchWriter
from millpond.wire import kernel
from millpond.wire.compression import ZSTD
from millpond.wire.records import Record
from support.kafka_broker import MECHANISMS, KafkaBroker
from support.node import eventually
from support.patience import with_time
from support.topics import create_topic, delete_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [with_time, pytest.mark.timeout(600)]
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker.start()
    finally:
        broker.terminate()


def fill(kafka: KafkaBroker, topic: str, numbers: range, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "lz4"})
    for number in numbers:
        headers = [("n", str(number).encode())] if number % 3 == 0 else None
        producer.produce(topic, str(number), key=str(number), partition=number % partitions, headers=headers)
    assert producer.flush(WAIT_SECONDS) == 0


def committed_numbers(kafka: KafkaBroker, topic: str, partitions: int) -> list[int]:
    """Everything that librdkafka reads with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "counter",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    actual: list[int] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, f"only partitions {ended} came to their end"
        if message.error() is None:
            actual.append(int(message.value()))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return actual


def committed_by(kafka: KafkaBroker, group: str) -> dict[tuple[str, int], int]:
    """The group's committed offsets."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    group_offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
        WAIT_SECONDS
    )
    return {(each.topic, each.partition): each.offset for each in group_offsets.topic_partitions}


def append(writer: BatchWriter, place: Place, numbers: range) -> None:
    now_ms = int(time.time() * 1000)
    writer.append_records(place, [Record(0, now_ms, None, b"%d" % number) for number in numbers])


def values(cluster: Cluster, place: Place, isolation: offsets.Isolation) -> list[int]:
    last = offsets.latest(cluster, [place], isolation)[place]
    actual = []
    for header, data in read_range(cluster, place, 0, last, isolation=isolation):
        decoded = kernel.decode_records(data, header.record_count, header.base_offset, header.base_timestamp, None)
        actual += [int(value or b"") for _, _, _, value, _ in decoded]
    return actual


def test_every_login_works_and_a_wrong_password_is_refused(kafka: KafkaBroker) -> None:
    for listener in ("LOGIN", "SECRET"):
        for mechanism in MECHANISMS:
            with Cluster(kafka.login(listener, mechanism)) as cluster:
                assert len(cluster.brokers()) == 1
            wrong = kafka.login(listener, mechanism, password="spilled")
            with Cluster(wrong) as cluster, pytest.raises(LoginFailed, match="check the user name and the password"):
                cluster.brokers()


def test_batches_are_written_and_read(kafka: KafkaBroker, topic: str) -> None:
    create_topic(kafka.bootstrap, topic, 2)
    places = [Place(topic, 0), Place(topic, 1)]
    with Cluster({"bootstrap.servers": kafka.bootstrap}) as cluster:
        with BatchWriter(cluster, codec=ZSTD, request_bytes=1_000) as writer:
            for first in range(0, 400, 10):
                append(writer, places[first // 10 % 2], range(first, first + 10))
            writer.flush()
        actual = [values(cluster, place, "read_uncommitted") for place in places]
        assert sorted(actual[0] + actual[1]) == list(range(400))
        assert actual == [sorted(each) for each in actual]
        assert offsets.at_times(cluster, {places[0]: 0, places[1]: 1 << 42}) == {places[0]: 0, places[1]: None}
        offsets.commit_group(cluster, f"{topic}-readers", {places[0]: 5})
        delete_records(kafka.bootstrap, topic, 0, 20)
        assert offsets.earliest(cluster, places) == {places[0]: 20, places[1]: 0}
        with pytest.raises(OffsetsGone, match="offset 0 was asked for, the log has 20 to 200"):
            list(read_range(cluster, places[0], 0, 200))
    assert committed_by(kafka, f"{topic}-readers") == {(topic, 0): 5}


def test_transactions_are_visible_once_committed(kafka: KafkaBroker, topic: str) -> None:
    create_topic(kafka.bootstrap, topic, 1)
    place = Place(topic, 0)
    kept = [*range(10), *range(20, 30)]
    with Cluster({"bootstrap.servers": kafka.bootstrap}) as cluster:
        for number, commit in enumerate((True, False, True)):
            identity = init_producer(cluster, f"{topic}-{number}", 60_000)
            with BatchWriter(cluster, transactional=identity) as writer:
                append(writer, place, range(number * 10, number * 10 + 10))
                writer.flush()
            assert list_open(cluster, f"{topic}-") == [f"{topic}-{number}"]
            end(cluster, identity, commit=commit)
        # Kafka answers when the outcome is certain, and writes it to the partitions a moment later.
        assert eventually(lambda: values(cluster, place, "read_committed") == kept)
        assert values(cluster, place, "read_uncommitted") == list(range(30))
    assert committed_numbers(kafka, topic, 1) == kept


def options_of(settings: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": text for name, text in settings.items()}


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    actual = frame.selectExpr("partition", "offset", "string(key)", "string(value)", "timestampType", "headers")
    return sorted(tuple(row) for row in actual.collect())


def test_the_source_reads_with_and_without_a_login(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    create_topic(kafka.bootstrap, topic, 3)
    fill(kafka, topic, range(300), 3)
    expected = sorted(
        (n % 3, n // 3, str(n), str(n), 0, [("n", str(n).encode())] if n % 3 == 0 else None) for n in range(300)
    )
    for settings in ({"bootstrap.servers": kafka.bootstrap}, kafka.login("SECRET", "SCRAM-SHA-512")):
        frame = spark.read.format("millpond").options(**options_of(settings))
        actual = rows_of(
            frame.option("subscribe", topic).option("includeHeaders", True).option("minPartitions", 5).load()
        )
        assert [(*row[:5], row[5] and [tuple(each) for each in row[5]]) for row in actual] == expected
    wrong = options_of(kafka.login("SECRET", "PLAIN", password="spilled"))
    refused = spark.read.format("millpond").options(**wrong).option("subscribe", topic).load()
    with pytest.raises(Exception, match="check the user name and the password"):
        refused.count()


def test_a_stream_is_copied_exactly_once_with_a_login(
    spark: SparkSession, kafka: KafkaBroker, topic: str, checkpoint: str
) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(kafka.bootstrap, source, 2)
    create_topic(kafka.bootstrap, target, 2)
    place = options_of(kafka.login("SECRET", "SCRAM-SHA-256"))
    for run in range(2):
        fill(kafka, source, range(run * 100, run * 100 + 100), 2)
        rows = (
            spark.readStream.format("millpond")
            .options(**place)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("commitGroup", f"{topic}-lag")
            .load()
        )
        query = (
            rows.select("key", "value")
            .writeStream.format("millpond")
            .options(**place)
            .option("topic", target)
            .option("delivery", "exactly_once")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert eventually(lambda: sorted(committed_numbers(kafka, target, 2)) == list(range(200)))
    assert committed_by(kafka, f"{topic}-lag") == {(source, 0): 100, (source, 1): 100}


def test_a_batch_is_written_at_least_once(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    create_topic(kafka.bootstrap, topic, 2)
    rows = spark.range(500).selectExpr("cast(id as string) as value")
    rows.write.format("millpond").option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", topic).mode(
        "append"
    ).save()
    assert sorted(committed_numbers(kafka, topic, 2)) == list(range(500))
