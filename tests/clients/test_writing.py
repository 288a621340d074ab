"""Produce frame by frame: idempotence, and what is rejected."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from support.raw import Raw, batch, produce_request

# Idempotence.


def producer_id(raw):
    reply = raw.call(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert reply.error_code == ErrorCode.NONE
    return reply.producer_id


def numbered(producer, sequence, *values, epoch=0):
    return batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.smoke
def test_a_batch_sent_twice_is_stored_once_and_answered_with_its_first_offset(raw, topic):
    raw.create_topic(topic)
    raw.produce(topic, 0, batch(b"other"))
    producer = producer_id(raw)
    first = numbered(producer, 0, b"a", b"b")
    assert raw.produce(topic, 0, first).base_offset == 1
    assert raw.produce(topic, 0, numbered(producer, 2, b"c")).base_offset == 3
    again = raw.produce(topic, 0, first)
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 1)
    assert [each.value for each in raw.read_all(topic)] == [b"other", b"a", b"b", b"c"]


def test_a_gap_and_an_old_epoch_are_refused_and_leave_nothing(raw, topic):
    raw.create_topic(topic)
    producer = producer_id(raw)
    raw.produce(topic, 0, numbered(producer, 0, b"a", epoch=3))
    gap = raw.produce(topic, 0, numbered(producer, 2, b"c", epoch=3))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = raw.produce(topic, 0, numbered(producer, 1, b"b", epoch=2))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    leap = raw.produce(topic, 0, numbered(producer, 1, b"b", epoch=4))
    assert leap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert raw.produce(topic, 0, numbered(producer, 0, b"new", epoch=4)).error_code == ErrorCode.NONE
    assert [each.value for each in raw.read_all(topic)] == [b"a", b"new"]


def test_producer_ids_are_all_different_also_over_restarts(make_node):
    node = make_node()
    seen = []
    for crash in (False, True, True):
        with Raw(node.port) as raw:
            seen += [producer_id(raw) for _ in range(5)]
        node.restart(crash=crash)
    assert len(set(seen)) == 15


# Rejected writes.


def test_damaged_batches_are_refused_and_leave_nothing(raw, topic):
    raw.create_topic(topic)
    good = batch(b"hello")
    flipped = bytearray(good)
    flipped[-2] ^= 1
    assert raw.produce(topic, 0, bytes(flipped)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, good[:-3]).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, good + b"tail").error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, 0, b"").error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert raw.read_all(topic) == []
    assert raw.produce(topic, 0, good).base_offset == 0


def test_one_bad_partition_does_not_spoil_the_others(raw, topic):
    raw.create_topic(topic, 2)
    request = produce_request(topic, 0, batch(b"good"))
    data = m.ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data += [data(index=9, records=batch(b"x")), data(index=1, records=b"junk" * 30)]
    replies = raw.call(request, 9).responses[0].partition_responses
    assert [each.error_code for each in replies][:2] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert replies[2].error_code != 0
    assert [each.value for each in raw.read_all(topic, 0)] == [b"good"]


def test_a_compacted_topic_wants_keys(raw, topic):
    raw.create_topic(topic, cleanup_policy="compact")
    assert raw.produce(topic, 0, batch(b"no key")).error_code == ErrorCode.INVALID_RECORD


# Concurrency.


@pytest.mark.smoke
def test_writers_and_readers_at_the_same_time_agree(node, topic):
    """Eight connections at once: every write gets its own offset, and all of them are read."""
    with Raw(node.port) as raw:
        raw.create_topic(topic)
        offsets, faults = [], []

        def write(number):
            try:
                with Raw(node.port) as own:
                    offsets.extend(own.produce(topic, 0, batch(uuid4().bytes), acks=1).base_offset for _ in range(50))
            except Exception as fault:
                faults.append(fault)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert sorted(offsets) == list(range(400))
        assert [each.offset for each in raw.read_all(topic)] == list(range(400))
