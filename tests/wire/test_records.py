"""Records in and out of batches, against kafka-python and librdkafka, and batches rewritten by compaction."""

from __future__ import annotations

import socket
import struct
from contextlib import closing, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from millpond.base.errors import MalformedMessage, Refused, RemoteError
from millpond.wire import kernel
from millpond.wire.batch import HEADER_BYTES, BatchHeader, check_batch, read_header, walk
from millpond.wire.compression import CODEC_NAMES
from millpond.wire.kernel import plain
from millpond.wire.records import Record, batch_keys, decode_batch, emptied, encode_batch, retained, wrap_payload

CODECS = range(5)

blobs = st.none() | st.binary(max_size=20)
record_lists = st.lists(
    st.builds(
        Record,
        offset=st.integers(0, 1_000),
        timestamp=st.integers(-1, 1 << 45),
        key=blobs,
        value=blobs,
        headers=st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda record: record.offset,
).map(lambda records: sorted(records, key=lambda record: record.offset))


@pytest.fixture(params=["plain", "chosen"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        for name in ("decode_records", "record_keys", "record_spans", "flagged_records"):
            monkeypatch.setattr(kernel, name, getattr(plain, name))


RECORDS = [
    Record(50, 9_000, b"a", b"1", (("trace", b"x"), ("null", None))),
    Record(51, 9_005, b"b", None),
    Record(54, 9_003, None, b""),
    Record(57, 9_009, b"a", b"2" * 500),
]


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists, base=st.integers(0, 1 << 60))
def test_what_is_encoded_is_decoded(codec: int, records: list[Record], base: int) -> None:
    moved = [record._replace(offset=base + record.offset) for record in records]
    raw = encode_batch(moved, base_offset=base, codec=codec)
    header = check_batch(raw, compacted=True)
    assert header.size == len(raw)
    assert decode_batch(b"--" + raw + b"--", 2) == moved
    assert [key for _, key, _, _ in batch_keys(raw)] == [record.key for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_records_encoded_already_are_wrapped_as_one_batch(codec: int) -> None:
    records = [Record(offset, 9_000 + offset % 3, b"k", b"v" * 90) for offset in range(30)]
    payload = encode_batch(records)[HEADER_BYTES:]
    fields = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40, "transactional": True}
    wrapped = wrap_payload(memoryview(payload), 30, 9_000, 9_002, codec=codec, **fields)
    assert check_batch(wrapped) == read_header(wrapped)
    assert decode_batch(wrapped) == records
    assert wrapped == encode_batch(records, codec=codec, **fields)


@given(record_lists)
def test_a_batch_without_a_producer_is_wrapped_too(records: list[Record]) -> None:
    dense = [record._replace(offset=offset) for offset, record in enumerate(records)]
    payload = encode_batch(dense)[HEADER_BYTES:]
    latest = max(record.timestamp for record in dense)
    assert wrap_payload(payload, len(dense), dense[0].timestamp, latest) == encode_batch(dense)


@pytest.mark.usefixtures("either_kernel")
def test_both_kernels_decode_to_records() -> None:
    records = decode_batch(encode_batch(RECORDS, base_offset=50))
    assert records == RECORDS
    assert isinstance(records[0], Record)
    assert records[0].headers == (("trace", b"x"), ("null", None))


@given(records=record_lists)
def test_bytes_are_those_of_another_implementation(records: list[Record]) -> None:
    dense = [record._replace(offset=number) for number, record in enumerate(records)]
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        batch_size=1 << 20,
    )
    for record in dense:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    theirs = bytes(builder.build())
    ours = encode_batch(
        dense,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        transactional=True,
        leader_epoch=read_header(theirs).leader_epoch,
    )
    assert ours == theirs


@pytest.mark.parametrize("codec", [0, 1])
def test_another_implementation_reads_our_batches(codec: int) -> None:
    raw = encode_batch(RECORDS, base_offset=50, codec=codec)
    other = DefaultRecordBatch(raw)
    assert other.validate_crc()
    read = [Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in other]
    assert read == RECORDS


def test_every_header_field_can_be_chosen() -> None:
    raw = encode_batch(
        RECORDS,
        base_offset=40,
        codec=3,
        leader_epoch=6,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
        transactional=True,
        control=True,
        append_time_ms=12_345,
        delete_horizon_ms=99_999,
        last_offset_delta=30,
    )
    header = check_batch(raw, compacted=True)
    assert header == BatchHeader(
        base_offset=40,
        batch_length=len(raw) - 12,
        leader_epoch=6,
        magic=2,
        crc=header.crc,
        attributes=0x03 | 0x08 | 0x10 | 0x20 | 0x40,
        last_offset_delta=30,
        base_timestamp=99_999,
        max_timestamp=12_345,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
        record_count=4,
    )
    assert header.delete_horizon_ms == 99_999
    assert decode_batch(raw) == [record._replace(timestamp=12_345) for record in RECORDS]


def test_a_horizon_does_not_move_the_records_in_time() -> None:
    assert decode_batch(encode_batch(RECORDS, base_offset=50, delete_horizon_ms=1 << 42)) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("horizon", [None, 5, 1 << 42])
@pytest.mark.parametrize("append_time_ms", [None, 12_345])
@pytest.mark.usefixtures("either_kernel")
def test_a_batch_keeps_only_what_is_flagged(codec: int, horizon: int | None, append_time_ms: int | None) -> None:
    raw = encode_batch(
        RECORDS,
        base_offset=48,
        codec=codec,
        leader_epoch=6,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
        transactional=True,
        append_time_ms=append_time_ms,
        last_offset_delta=12,
    )
    before = read_header(raw)
    for flags in ([True, False, True, False], [False, True, False, False], [True] * 4):
        rewritten = retained(b"--" + raw + b"--", 2, flags, horizon)
        assert rewritten is not None
        after = check_batch(rewritten, compacted=True)
        expected = [record for record, keep in zip(decode_batch(raw), flags, strict=True) if keep]
        assert decode_batch(rewritten) == expected
        assert after.record_count == len(expected)
        assert after.delete_horizon_ms == horizon
        assert after.max_timestamp == (append_time_ms or max(record.timestamp for record in expected))
        kept = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "last_sequence")
        assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
        assert after.attributes & ~0x40 == before.attributes
    assert retained(raw, 0, [False] * 4, horizon) is None


def test_a_batch_that_keeps_everything_keeps_its_bytes() -> None:
    raw = encode_batch(RECORDS, base_offset=50, codec=1)
    assert retained(b"--" + raw + b"--", 2, [True] * 4) == raw


def test_a_horizon_once_set_stays() -> None:
    raw = encode_batch(RECORDS, base_offset=50, delete_horizon_ms=70_000)
    assert retained(raw, 0, [True] * 4, 80_000) == raw
    rewritten = retained(raw, 0, [True, True, False, False], 80_000)
    assert rewritten is not None
    assert read_header(rewritten).delete_horizon_ms == 70_000
    assert decode_batch(rewritten) == RECORDS[:2]


def test_an_emptied_batch_remembers_the_producer() -> None:
    raw = encode_batch(
        RECORDS, base_offset=50, codec=4, producer_id=7, producer_epoch=8, base_sequence=9, delete_horizon_ms=5
    )
    before, bare = read_header(raw), emptied(b"--" + raw, 2)
    after = check_batch(bare, compacted=True)
    assert len(bare) == 61
    assert decode_batch(bare) == []
    assert (after.base_offset, after.last_offset, after.last_sequence) == (50, 57, 16)
    assert (after.producer_id, after.producer_epoch) == (7, 8)
    assert after.max_timestamp == before.max_timestamp
    assert (after.codec, after.delete_horizon_ms, after.record_count) == (0, None, 0)
    assert encode_batch([], base_offset=5, last_offset_delta=3)[:8] == struct.pack(">q", 5)


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_holds(codec: int) -> None:
    raw = encode_batch([Record(0, 0, None, bytes(1 << 20))], codec=codec)
    if codec:
        with pytest.raises(Refused):
            decode_batch(raw, limit_bytes=1 << 16)
    assert len(decode_batch(raw, limit_bytes=2 << 20)[0].value or b"") == 1 << 20


def test_timestamps_out_of_range_are_malformed() -> None:
    latest = (1 << 63) - 1
    raw = bytearray(encode_batch([Record(0, 0, None, None), Record(1, 1, None, None)]))
    struct.pack_into(">q", raw, 27, latest)
    with pytest.raises(MalformedMessage):
        retained(raw, 0, [False, True])
    with pytest.raises(MalformedMessage):
        retained(raw, 0, [True, False], -5)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_mutated_batches_only_ever_blame_the_sender(codec: int, data: st.DataObject) -> None:
    raw = bytearray(encode_batch(RECORDS, base_offset=50, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))]
    with suppress(RemoteError, Refused):
        decode_batch(raw, limit_bytes=1 << 16)
    with suppress(RemoteError, Refused):
        flags = [bool(delta % 2) for delta, _, _, _ in batch_keys(raw, limit_bytes=1 << 16)]
        retained(raw, 0, flags, 5, limit_bytes=1 << 16)
        emptied(raw)


class MockBroker:
    """librdkafka's own mock broker, spoken to in bare bytes: Produce v3 and Fetch v4."""

    def __init__(self) -> None:
        self.owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self.owner.list_topics(timeout=10).brokers.values()
        self.address = (broker.host, broker.port)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih4s", api_key, version, 1, 4, b"test") + body
        with socket.create_connection(self.address, timeout=10) as link, closing(link.makefile("rb")) as stream:
            link.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", stream.read(4))
            return stream.read(length)[4:]

    def fetch(self, topic: str) -> bytes:
        """The raw batches of partition 0."""
        head = struct.pack(">iiiibi", -1, 1000, 1, 1 << 24, 0, 1) + named(topic)
        reply = self.ask(1, 4, head + struct.pack(">iiqi", 1, 0, 0, 1 << 24))
        # Throttle time, one topic, one partition: index, error, two watermarks, aborted transactions, length.
        at = 4 + 4 + len(named(topic)) + 4 + 4
        error, _, _, aborted = struct.unpack_from(">hqqi", reply, at)
        assert (error, max(aborted, 0)) == (0, 0)
        return reply[at + 22 + 4 :]

    def produce(self, topic: str, raw: bytes) -> None:
        body = struct.pack(">hhii", -1, -1, 10_000, 1) + named(topic) + struct.pack(">iii", 1, 0, len(raw)) + raw
        reply = self.ask(0, 3, body)
        (error,) = struct.unpack_from(">h", reply, 4 + len(named(topic)) + 4 + 4)
        assert error == 0


def named(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@pytest.fixture(scope="module")
def mock_broker() -> MockBroker:
    return MockBroker()


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_librdkafka_are_understood(mock_broker: MockBroker, codec: int) -> None:
    topic = f"from-librdkafka-{codec}"
    producer = Producer(
        {
            "bootstrap.servers": mock_broker.bootstrap,
            "compression.type": CODEC_NAMES[codec],
            "linger.ms": 100,
            "enable.idempotence": True,
        }
    )
    for number in range(200):
        producer.produce(
            topic, b"value %d" % number * 20, b"%d" % number, 0, timestamp=1_000 + number, headers=HEADERS
        )
    assert producer.flush(60) == 0
    raw = mock_broker.fetch(topic)
    found: list[Record] = []
    for position, header in walk(raw):
        assert header.codec == codec
        check_batch(raw, position)
        found += decode_batch(raw, position)
    assert found == [
        Record(number, 1_000 + number, b"%d" % number, b"value %d" % number * 20, tuple(HEADERS))
        for number in range(200)
    ]


HEADERS: list[Any] = [("source", b"test"), ("empty", b""), ("null", None)]


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_understands_our_batches(mock_broker: MockBroker, codec: int) -> None:
    topic = f"to-librdkafka-{codec}"
    records = [
        Record(number, 1_000 + number, b"%d" % number, b"value %d" % number * 400, tuple(HEADERS))
        for number in range(200)
    ]
    mock_broker.owner.list_topics(topic, timeout=10)
    mock_broker.produce(topic, encode_batch(records, codec=codec))
    consumer = Consumer({"bootstrap.servers": mock_broker.bootstrap, "group.id": "test", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Any] = consumer.consume(200, timeout=10)
    consumer.close()
    assert [
        Record(each.offset(), each.timestamp()[1], each.key(), each.value(), tuple(each.headers()))
        for each in messages
    ] == records
