"""Keys land where other clients would put them."""

from __future__ import annotations

from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as other_murmur2

from millpond.wire.partitioner import murmur2, partition_for_key


@given(st.binary(max_size=100))
def test_murmur2_agrees_with_another_implementation(key: bytes) -> None:
    assert murmur2(key) == other_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_partition_is_one_of_those_there_are(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions


def test_librdkafka_chooses_the_same_partitions() -> None:
    producer = Producer({"test.mock.num.brokers": 1, "partitioner": "murmur2", "linger.ms": 0, "log_level": 0})
    partitions = len(producer.list_topics("keys", timeout=10).topics["keys"].partitions)
    assert partitions > 1
    chosen: dict[bytes, int] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None
        chosen[message.key()] = message.partition()  # type: ignore[attr-defined]

    keys = [b"k" * length + b"%d" % length for length in range(40)]
    for key in keys:
        producer.produce("keys", b"", key, on_delivery=delivered)
    producer.flush(60)
    assert chosen == {key: partition_for_key(key, partitions) for key in keys}
    assert len(set(chosen.values())) > 1
