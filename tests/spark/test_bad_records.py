"""Bad records in all three modes, from single batches to a stream in Spark and a redrive."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer, TopicPartition

from millpond.cli import main
from millpond.client.dead_letters import REDRIVEN, read_dead_letter
from millpond.client.errors import SendFailed
from millpond.client.message import Message
from millpond.columns import parser
from millpond.columns.batches import SCHEMA, SCHEMA_WITH_HEADERS
from millpond.spark import bad_records
from millpond.spark.bad_records import BadRecord, Sieve
from millpond.spark.options import Options, read_options
from millpond.spark.source.arrow import schema_of
from millpond.wire.kernel import read_messages
from support.node import Node
from support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value, headers."""

TIME_MS = 1_700_000_000_123
RECORDS: list[Record] = [
    (b"a", b'{"id":1}', []),
    (b"b", b"poison", [("trace", b"t-1"), ("trace", None)]),
    (None, None, []),
    (None, b'{"id":"four"}', []),
    (b"c", b'{"id":5}', [("x", b"y")]),
]


def options(**given: str) -> Options:
    return read_options(
        {"subscribe": "orders", "valueFormat": "json", "valueSchema": "id long", **given}, "readStream"
    )


def batch_of(records: list[Record], topic: str = "orders", with_headers: bool = True) -> pa.RecordBatch:
    """A batch as the source creates it."""
    keys, values, headers = zip(*records, strict=True)
    count = len(records)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(topic, count),
        pa.repeat(pa.scalar(3, pa.int32()), count),
        pa.array(range(100, 100 + count), pa.int64()),
        pa.array([TIME_MS * 1000] * count, pa.timestamp("us", "UTC")),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    if not with_headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    named = [[{"key": name, "value": value} for name, value in each] or None for each in headers]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(named, SCHEMA_WITH_HEADERS.field("headers").type)], schema=SCHEMA_WITH_HEADERS
    )


def letters(bootstrap: str, topic: str, expected: int) -> list[Message]:
    """The first `expected` records of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "letters", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        result: list[Message] = []
        deadline = time.monotonic() + 60
        while len(result) < expected and time.monotonic() < deadline:
            raw = consumer.poll(0.1)
            if raw is not None and raw.error() is None:
                read_messages([raw], Message, result)
        return result
    finally:
        consumer.close()


def test_raw_values_are_not_parsed() -> None:
    sieve = Sieve(read_options({"subscribe": "orders"}, "read"))
    batch = batch_of(RECORDS, with_headers=False)
    assert sieve.sift(batch, "orders", 3) is batch
    assert list(sieve.parts(batch)) == [batch]
    assert not sieve.needs_headers
    sieve.flush()


def test_a_batch_that_exceeds_a_column_is_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Avro symbol takes one byte, so a few megabytes can exceed the offsets of a column."""
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B" * 1000]}
    field = {
        "name": "a",
        "type": [
            "null",
            {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "S",
                    "fields": [
                        {"name": "e", "type": enum},
                        {"name": "again", "type": {"type": "map", "values": "E"}},
                    ],
                },
            },
        ],
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}, field]}
    value = b"\2\2" + b"\x14" + b"\2\0" * 10 + b"\0"
    monkeypatch.setattr(parser, "TEXT_BYTES_MAX", 100_000)
    given = options(valueFormat="avro", valueSchema=json.dumps(schema), badRecords="null")
    for count in (1, 2, 3, 50):
        batch = batch_of([(None, value, [])] * count)
        sieve = Sieve(given)
        parts = list(sieve.parts(batch))
        assert pa.Table.from_batches(parts) == pa.Table.from_batches([batch])
        sifted = [sieve.sift(part, "orders", 3).column("parsed") for part in parts]
        for rows in sifted:
            texts = rows.field("a").flatten().field("e")
            assert len(rows) == 1 or pc.sum(pc.binary_length(texts)).as_py() <= 100_000
        entries = [{"e": "B" * 1000, "again": []}] * 10
        assert pa.chunked_array(sifted).to_pylist() == [{"i": 1, "a": entries}] * count


def test_a_value_that_no_column_can_hold_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow then returns a chunked array."""
    made = pa.array
    plain = parser.Parser("json", "s string", plain=True)

    def made_in_pieces(rows: Any, kind: Any) -> Any:
        whole = made(rows, kind)
        is_too_much = any(row is not None and row["s"] == "long" for row in rows)
        return pa.chunked_array([whole]) if is_too_much else whole

    values = pa.array([b'{"s":"a"}', b'{"s":"long"}', b'{"s":"b"}'], pa.binary())
    monkeypatch.setattr(parser.pa, "array", made_in_pieces)
    result = plain.parse(values)
    assert result.rows.to_pylist() == [{"s": "a"}, None, {"s": "b"}]
    assert result.faults == [(1, "does not fit: more text than a column can hold")]


def test_fail_names_the_record_the_reason_and_the_alternatives() -> None:
    sieve = Sieve(options())
    assert not sieve.needs_headers
    with pytest.raises(BadRecord) as caught:
        sieve.sift(batch_of(RECORDS, with_headers=False), "orders", 3)
    assert str(caught.value) == (
        "orders[3]@101 does not parse as json: not JSON: Expecting value at character 1 (1 more of 5 are bad). "
        "Correct valueSchema, or set badRecords=null to keep such rows with the reason in the column `fault`, or "
        "badRecords=dead_letters to send them to orders.bad.dlq and go on"
    )
    good = sieve.sift(batch_of(RECORDS[:1], with_headers=False), "orders", 3)
    assert good.schema.names == [*SCHEMA.names, "parsed"]
    assert good.column("parsed").to_pylist() == [{"id": 1}]


def test_null_keeps_the_row_and_the_reason() -> None:
    result = Sieve(options(badRecords="null", includeHeaders="true")).sift(batch_of(RECORDS), "orders", 3)
    assert result.schema.names == [*SCHEMA_WITH_HEADERS.names, "parsed", "fault"]
    assert result.column("parsed").to_pylist() == [{"id": 1}, None, None, None, {"id": 5}]
    assert result.column("fault").to_pylist() == [
        None,
        "not JSON: Expecting value at character 1",
        None,
        'id: a whole number was expected, not "four"',
        None,
    ]
    assert result.column("value").to_pylist() == [value for _, value, _ in RECORDS]


def test_dead_letters_are_complete_and_other_rows_continue(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, f"{topic}.bad.dlq")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters", "commitGroup": "lake"}
    sieve = Sieve(options(subscribe=topic, **given))
    assert sieve.needs_headers
    result = sieve.sift(batch_of(RECORDS, topic), topic, 3)
    assert result.schema.names == [*SCHEMA.names, "parsed"]
    assert result.column("offset").to_pylist() == [100, 102, 104]
    assert result.column("parsed").to_pylist() == [{"id": 1}, None, {"id": 5}]
    sieve.flush()
    first, second = letters(node.bootstrap, f"{topic}.bad.dlq", 2)
    assert (first.key, first.value) == (b"b", b"poison")
    assert first.headers[:2] == (("trace", b"t-1"), ("trace", None))
    assert (second.key, second.value) == (None, b'{"id":"four"}')
    letter = read_dead_letter(second)
    assert (letter.origin.topic, letter.origin.partition, letter.origin.offset) == (topic, 3, 103)
    assert letter.origin.timestamp_ms == TIME_MS
    assert (letter.group, letter.attempts) == ("lake", 1)
    assert letter.error_type == "millpond.spark.bad_records.BadRecord"
    assert letter.error_message == 'id: a whole number was expected, not "four"'
    assert abs(letter.time_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize("headers", ["false", "true"])
@pytest.mark.parametrize("mode", ["fail", "null", "dead_letters"])
def test_the_batch_has_the_declared_schema(mode: str, headers: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {"valueSchema": SCHEMA_TEXT + ", m map<string,timestamp_ntz>, b binary not null"}
    declared = options(badRecords=mode, includeHeaders=headers, **given)
    sieve = Sieve(declared)
    records: list[Record] = [(b"k", b'{"id":1,"b":""}', []), (None, None, [])]
    result = sieve.sift(batch_of(records, with_headers=headers == "true" or sieve.needs_headers), "orders", 0)
    assert result.schema.equals(to_arrow_schema(schema_of(declared), timezone="UTC"))


def test_each_cluster_has_one_producer_with_its_security(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def make(bootstrap: str, **given: Any) -> object:
        made.append({"bootstrap": bootstrap, **given})
        return object()

    monkeypatch.setattr("millpond.client.producer.Producer", make)
    monkeypatch.setattr(bad_records, "_producers", {})
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p", "client.id": "etl"}
    safe = {"bootstrap.servers": "a:1", "security.protocol": "SASL_PLAINTEXT", **login}
    assert bad_records.producer_for(safe) is bad_records.producer_for(dict(safe))
    assert bad_records.producer_for({"bootstrap.servers": "b:1"}) is not bad_records.producer_for(safe)
    assert [each["bootstrap"] for each in made] == ["a:1", "b:1"]
    assert made[0]["acks"] == "all"
    expected = {"security.protocol": "sasl_plaintext", "sasl.username": "u", "sasl.password": "p", "client.id": "etl"}
    assert made[0]["settings"].items() >= expected.items()


def test_headers_are_kept_if_requested_and_the_topic_can_be_set(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, f"{topic}-bad")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters", "includeHeaders": "true"}
    sieve = Sieve(options(subscribe=topic, deadLetterTopic=f"{topic}-bad", **given))
    result = sieve.sift(batch_of(RECORDS, topic), topic, 3)
    assert result.schema.names == [*SCHEMA_WITH_HEADERS.names, "parsed"]
    assert result.column("headers").to_pylist() == [None, None, [{"key": "x", "value": b"y"}]]
    sieve.flush()
    assert read_dead_letter(letters(node.bootstrap, f"{topic}-bad", 2)[0]).group == "spark"


def test_unacknowledged_dead_letters_are_limited(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_records, "UNACKNOWLEDGED_MAX", 10)
    create_topic(node.bootstrap, f"{topic}.bad.dlq")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters"}
    sieve = Sieve(options(subscribe=topic, **given))
    result = sieve.sift(batch_of([(None, b"%d" % number, []) for number in range(500)], topic), topic, 0)
    assert len(result) == 0
    assert len(sieve._on_their_way) <= 10
    sieve.flush()
    assert [each.value for each in letters(node.bootstrap, f"{topic}.bad.dlq", 500)] == [
        b"%d" % n for n in range(500)
    ]


@pytest.mark.parametrize(
    "reads",
    [
        {"subscribe": "orders, orders.bad.dlq"},
        {"subscribePattern": "orders.*"},
        {"assign": '{"orders":[0],"orders.bad.dlq":[0]}'},
    ],
)
def test_a_query_may_not_read_its_own_dead_letters(reads: dict[str, str]) -> None:
    given = {"valueFormat": "json", "valueSchema": "id long", "badRecords": "dead_letters"}
    sieve = Sieve(read_options({**reads, **given}, "readStream"))
    with pytest.raises(BadRecord, match=r"the query reads orders\.bad\.dlq, where its own dead letters would go"):
        sieve.sift(batch_of(RECORDS), "orders", 3)


def test_a_refused_dead_letter_fails_the_task(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    create_topic(node.bootstrap, f"{topic}.bad.dlq", config={"max.message.bytes": "2000"})
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters"}
    sieve = Sieve(options(subscribe=topic, **given))
    noise = random.Random(5).randbytes(10_000)
    sieve.sift(batch_of([(None, noise, [])], topic), topic, 0)
    with pytest.raises(SendFailed, match=r"max\.message\.bytes"):
        sieve.flush()


class Orders:
    """A topic with good orders and a few bad ones, read by Spark."""

    def __init__(self, spark: SparkSession, node: Node, topic: str, checkpoint: str) -> None:
        self._spark, self._node, self._topic, self._checkpoint = spark, node, topic, checkpoint
        create_topic(node.bootstrap, topic, 2)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(400):
            value = b"poison" if number in POISON else order(number)
            producer.produce(topic, value, b"k%d" % number, partition=number % 2, headers=[("n", b"%d" % number)])
        assert producer.flush(60) == 0

    def rows(self, name: str, columns: str, **given: str) -> list[Row]:
        """The rows that a stream has read."""
        frame = (
            self._spark.readStream.format("millpond")
            .option("kafka.bootstrap.servers", self._node.bootstrap)
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("valueFormat", "json")
            .option("valueSchema", SCHEMA_TEXT)
            .options(**given)
            .load()
        )
        writer = frame.selectExpr(*columns.split("; ")).writeStream.format("memory").queryName(name)
        writer = writer.option("checkpointLocation", f"{self._checkpoint}/{name}")
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(90)
        finally:
            query.stop()
        return self._spark.table(name).collect()


POISON = (17, 200, 399)
SCHEMA_TEXT = (
    "id long, amount double, at timestamp, day date, price decimal(10,2), tags array<struct<k:string,v:int>>"
)


def order(number: int) -> bytes:
    fields: dict[str, Any] = {
        "id": number,
        "amount": number / 2,
        "at": "2024-01-02T03:04:05.123Z",
        "day": "2024-01-02",
    }
    return json.dumps(fields | {"price": "12.50", "tags": [{"k": "a", "v": number}]}).encode()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stream_with_bad_records(
    spark: SparkSession, node: Node, topic: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = Orders(spark, node, topic, checkpoint)
    create_topic(node.bootstrap, f"{topic}.bad.dlq")

    with pytest.raises(Exception, match=r"does not parse as json: not JSON: Expecting value at character 1"):
        orders.rows("failing", "parsed.id")

    kept = orders.rows("kept", "parsed.*; fault; value", badRecords="null")
    assert sorted(row.id for row in kept if row.fault is None) == [n for n in range(400) if n not in POISON]
    assert [(row.id, row.value) for row in kept if row.fault] == [(None, b"poison")] * 3
    first = min((row for row in kept if row.fault is None), key=lambda row: row.id)
    assert (first.at.isoformat(), str(first.day)) == ("2024-01-02T03:04:05.123000", "2024-01-02")
    assert (str(first.price), first.tags[0].k, first.tags[0].v) == ("12.50", "a", 0)

    good = orders.rows("good", "parsed.id; offset; partition", badRecords="dead_letters", commitGroup="lake")
    assert sorted(row.id for row in good) == [n for n in range(400) if n not in POISON]
    result = letters(node.bootstrap, f"{topic}.bad.dlq", 3)
    assert sorted((each.key, each.header("n")) for each in result) == [(b"k%d" % n, b"%d" % n) for n in POISON]

    # The way back is the same as for the letters of workers.
    where = ["--bootstrap", node.bootstrap]
    assert main(["dlq", "list", "--json", *where]) == 0
    boxes = {each["topic"]: each for each in json.loads(capsys.readouterr().out)}
    assert boxes[f"{topic}.bad.dlq"]["waiting"] == 3
    assert main(["dlq", "show", f"{topic}.bad.dlq", "--json-lines", "--error", "BadRecord", *where]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["origin"]["topic"], each["group"]) for each in shown} == {(topic, "lake")}
    assert sorted((each["origin"]["partition"], each["origin"]["offset"]) for each in shown) == [
        (0, 100),
        (1, 8),
        (1, 199),
    ]
    assert main(["dlq", "redrive", f"{topic}.bad.dlq", "--all", *where]) == 0
    capsys.readouterr()
    assert main(["dlq", "list", "--json", *where]) == 0
    boxes = {each["topic"]: each for each in json.loads(capsys.readouterr().out)}
    assert boxes[f"{topic}.bad.dlq"]["waiting"] == 0
    again = letters(node.bootstrap, topic, 201)[-1]
    assert (again.key, again.value, again.header("n"), again.header(REDRIVEN)) == (b"k200", b"poison", b"200", b"1")


EVERY_TYPE = (
    "a byte, b short, c int, d long, e float, f double, g decimal(20,3), h string, i boolean, j date, k timestamp, "
    "l timestamp_ntz, m binary, n map<string,array<int>>, o array<struct<p:string not null,q:timestamp>>, "
    "r struct<s:int>"
)
EVERY_VALUE: dict[str, Any] = {
    "a": -1,
    "b": 2,
    "c": 3,
    "d": 1 << 62,
    "e": 0.5,
    "f": 1e300,
    "g": "12345678901234567.125",
    "h": "é😀",
    "i": True,
    "j": "2024-02-29",
    "k": 1_704_164_645_123,
    "l": "2024-01-02T03:04:05",
    "m": "aGk=",
    "n": {"x": [1, None], "y": None},
    "o": [{"p": "", "q": "2024-01-02"}, None],
    "r": {"s": None},
}


@pytest.mark.slow
def test_every_type_arrives_in_spark(spark: SparkSession, node: Node, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in (json.dumps(EVERY_VALUE).encode(), b"{}", None, b"poison", json.dumps(EVERY_VALUE).encode()):
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    frame = (
        spark.read.format("millpond")
        .option("kafka.bootstrap.servers", node.bootstrap)
        .option("subscribe", topic)
        .option("valueFormat", "json")
        .option("valueSchema", EVERY_TYPE)
        .option("badRecords", "null")
        .load()
    )
    rows = frame.selectExpr("to_json(parsed) parsed", "parsed is null missing", "fault").collect()
    whole = json.loads(rows[0].parsed)
    assert whole == {
        **EVERY_VALUE,
        "g": 12345678901234567.125,
        "k": "2024-01-02T03:04:05.123Z",
        "l": "2024-01-02T03:04:05.000",
        "o": [{"p": "", "q": "2024-01-02T00:00:00.000Z"}, None],
        "r": {},
    }
    assert rows[4] == rows[0]
    assert [row.missing for row in rows] == [False, False, True, True, False]
    assert [row.parsed for row in rows[1:4]] == ["{}", None, None]
    assert [row.fault is None for row in rows] == [True, True, True, False, True]
