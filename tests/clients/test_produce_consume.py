"""What one real client writes, every real client reads: each codec, each acks setting, each odd record."""

from __future__ import annotations

import time

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire.batch import walk
from millpond.wire.compression import CODEC_BY_NAME
from support.clients import ACKS, CLIENTS, CODECS, HAS_KCAT, Confluent, Kcat, Refused, Sent, clients_here
from support.raw import batch

MESSAGE_BYTES_MAX = 1_048_588
NOW_MS = time.time_ns() // 1_000_000

no_kcat = pytest.mark.skipif(not HAS_KCAT, reason="kcat is not installed")
each_client = pytest.mark.parametrize(
    "client",
    [pytest.param(each, id=each.name, marks=no_kcat if isinstance(each, Kcat) else ()) for each in CLIENTS],
)
each_codec = pytest.mark.parametrize("codec", CODECS)


def stored_batches(raw, topic, partition=0):
    """The headers of all batches as they are in the log."""
    found, offset = [], 0
    while True:
        data = raw.fetch(topic, partition, offset, wait_ms=0).records
        if not data:
            return found
        found += [header for _, header in walk(data)]
        offset = found[-1].next_offset


def odd_messages(client):
    """Everything that a record can hold, as far as this client can express it."""
    if isinstance(client, Kcat):
        return [
            Sent(b"plain"),
            Sent(b"with a key", key=b"k1"),
            Sent(None, key=b"k1"),
            Sent(b"\xff\x00binary\n" * 3),
            Sent(b"with headers", headers=(("h", b"1"), ("h", b"2"), ("empty", b""))),
            Sent(b"wide " * 2000, key=b"wide"),
        ]
    # The Python clients refuse a record without both key and value; librdkafka sends it.
    nothing = [Sent(None, timestamp=1)] if isinstance(client, Confluent) else []
    return [
        *nothing,
        Sent(b"plain", timestamp=NOW_MS - 5000),
        Sent(b"with a key", key=b"k1", timestamp=NOW_MS - 9000),
        Sent(None, key=b"k1", timestamp=NOW_MS),
        Sent(b"", key=b"", timestamp=NOW_MS + 1),
        Sent(b"\xff\x00binary\n" * 3, key=b"\x00\xff\n", timestamp=NOW_MS + 2),
        Sent(b"h", headers=(("h", b"1"), ("h", b"2"), ("empty", b""), ("\u6c34", b"\xfe\x01")), timestamp=NOW_MS + 3),
        Sent(b"wide " * 2000, key=b"wide", timestamp=NOW_MS + 4),
    ]


@pytest.mark.smoke
@each_codec
@each_client
def test_what_one_client_writes_every_client_reads_the_same(node, raw, topic, client, codec):
    raw.create_topic(topic, 2)
    messages = odd_messages(client)
    began_ms = time.time_ns() // 1_000_000
    offsets = client.write(node.bootstrap, topic, messages, codec=codec, partition=1)
    assert offsets in (None, list(range(len(messages))))
    for reader in clients_here():
        data = reader.read(node.bootstrap, topic, len(messages), partition=1)
        assert [(each.key, each.value, each.headers) for each in data] == [
            (each.key, each.value, each.headers) for each in messages
        ], reader.name
        assert [each.offset for each in data] == list(range(len(messages))), reader.name
        assert all(each.timestamp_type in (0, -1) for each in data)
        for each, sent in zip(data, messages, strict=True):
            if sent.timestamp is not None:
                assert each.timestamp == sent.timestamp, reader.name
            else:
                assert began_ms - 1 <= each.timestamp <= began_ms + 20_000
    assert raw.read_all(topic, 0) == []


@pytest.mark.parametrize("acks", ACKS)
@each_codec
@each_client
def test_every_codec_with_every_kind_of_acknowledgement(node, raw, topic, client, codec, acks):
    raw.create_topic(topic)
    messages = [Sent(b"%d of the same words over and over " % number * 20, key=b"k") for number in range(50)]
    offsets = client.write(node.bootstrap, topic, messages, codec=codec, acks=acks)
    assert offsets in (None, list(range(50)))
    deadline = time.monotonic() + 60
    while len(records := raw.read_all(topic)) < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(each.key, each.value) for each in records] == [(each.key, each.value) for each in messages]
    assert {header.codec for header in stored_batches(raw, topic)} == {CODEC_BY_NAME[codec]}


@each_client
def test_an_idempotent_producer_writes_each_message_once_and_in_order(node, raw, topic, client):
    raw.create_topic(topic)
    messages = [Sent(b"%d" % number, key=b"k") for number in range(2000)]
    client.write(node.bootstrap, topic, messages, idempotent=True)
    assert [each.value for each in raw.read_all(topic)] == [each.value for each in messages]
    headers = stored_batches(raw, topic)
    assert len({(header.producer_id, header.producer_epoch) for header in headers}) == 1
    assert headers[0].producer_id >= 0
    following = 0
    for header in headers:
        assert header.base_sequence == following
        following = header.last_sequence + 1


def test_two_idempotent_producers_have_two_ids(node, raw, topic):
    raw.create_topic(topic)
    Confluent().write(node.bootstrap, topic, [Sent(b"a")], idempotent=True)
    Confluent().write(node.bootstrap, topic, [Sent(b"b")], idempotent=True)
    assert len({header.producer_id for header in stored_batches(raw, topic)}) == 2


@each_client
def test_a_message_just_below_the_limit_passes_and_one_above_it_is_named_too_large(node, raw, topic, client):
    raw.create_topic(topic)
    fits = Sent(b"f" * (MESSAGE_BYTES_MAX - 200))
    client.write(node.bootstrap, topic, [fits], bytes_max=2 << 20)
    with pytest.raises(Refused) as refusal:
        client.write(node.bootstrap, topic, [Sent(b"t" * MESSAGE_BYTES_MAX)], bytes_max=2 << 20)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert [each.value for each in raw.read_all(topic)] == [fits.value]


def test_the_limit_holds_to_the_byte_and_follows_the_topic(raw, topic):
    raw.create_topic(topic, max_message_bytes="1000")
    overhead = len(batch(b"x" * 500)) - 500
    exact = batch(b"x" * (1000 - overhead))
    assert len(exact) == 1000
    assert raw.produce(topic, 0, exact).error_code == ErrorCode.NONE
    refused = raw.produce(topic, 0, batch(b"x" * (1001 - overhead)))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "1001" in refused.error_message
    assert "max.message.bytes" in refused.error_message


@each_client
def test_a_topic_with_append_time_bears_the_brokers_time(node, raw, topic, client):
    raw.create_topic(topic, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    client.write(node.bootstrap, topic, [Sent(b"old", timestamp=1), Sent(b"also old", timestamp=2)])
    after = time.time_ns() // 1_000_000
    for reader in clients_here():
        for each in reader.read(node.bootstrap, topic, 2):
            assert before <= each.timestamp <= after, reader.name
            assert each.timestamp_type in (1, -1), reader.name


@each_client
def test_a_message_from_the_far_future_is_refused(node, raw, topic, client):
    if not client.stamps:
        pytest.skip("it has no choice of timestamps")
    raw.create_topic(topic)
    with pytest.raises(Refused) as refusal:
        client.write(node.bootstrap, topic, [Sent(b"x", timestamp=NOW_MS + 90_000_000)])
    assert refusal.value.code == ErrorCode.INVALID_TIMESTAMP
    assert raw.read_all(topic) == []


@each_client
def test_reading_begins_in_the_middle_of_a_batch_where_asked(node, raw, topic, client):
    raw.create_topic(topic)
    raw.produce(topic, 0, batch(*(b"%d" % number for number in range(100)), codec=CODEC_BY_NAME["zstd"]))
    data = client.read(node.bootstrap, topic, 40, start=57)
    assert [(each.offset, each.value) for each in data] == [(n, b"%d" % n) for n in range(57, 97)]


@each_client
def test_many_batches_over_many_fetches_come_in_order(node, raw, topic, client):
    raw.create_topic(topic, segment_bytes="200000")
    values = [b"%06d" % number + bytes(2000) for number in range(1500)]
    for start in range(0, 1500, 50):
        assert not raw.produce(topic, 0, batch(*values[start : start + 50]), acks=1).error_code
    data = client.read(node.bootstrap, topic, 1500)
    assert [each.value for each in data] == values


@each_client
def test_a_topic_comes_into_being_when_it_is_first_written_to(node, raw, topic, client):
    client.write(node.bootstrap, topic, [Sent(b"first")])
    assert [each.value for each in raw.read_all(topic)] == [b"first"]
