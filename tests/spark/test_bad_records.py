"""Bad records in all three ways, from single batches up to a stream of Spark and the way back of dead letters."""

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
from millpond.spark import bad_records
from millpond.spark.bad_records import BadRecord, Sieve
from millpond.spark.options import Options, read_options
from millpond.spark.parsing import parser
from millpond.spark.source.arrow import SCHEMA, SCHEMA_WITH_HEADERS, schema_of
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
    """As the source makes it."""
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


def letters(bootstrap: str, topic: str, wanted: int) -> list[Message]:
    """Everything in partition 0, once so many are there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "letters", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Message] = []
        deadline = time.monotonic() + 60
        while len(found) < wanted and time.monotonic() < deadline:
            raw = consumer.poll(0.1)
            if raw is not None and raw.error() is None:
                read_messages([raw], Message, found)
        return found
    finally:
        consumer.close()


def test_raw_values_are_left_alone() -> None:
    sieve = Sieve(read_options({"subscribe": "orders"}, "read"))
    batch = batch_of(RECORDS, with_headers=False)
    assert sieve.sift(batch, "orders", 3) is batch
    assert list(sieve.parts(batch)) == [batch]
    assert not sieve.needs_headers
    sieve.flush()


def test_short_values_of_long_symbols_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Avro a symbol takes a byte: of a few megabytes become more than the offsets of a column can tell."""
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
    """Arrow tells of it by an array in several pieces, which nobody expects."""
    made = pa.array
    plain = parser.Parser("json", "s string", plain=True)

    def made_in_pieces(rows: Any, kind: Any) -> Any:
        whole = made(rows, kind)
        is_too_much = any(row is not None and row["s"] == "long" for row in rows)
        return pa.chunked_array([whole]) if is_too_much else whole

    values = pa.array([b'{"s":"a"}', b'{"s":"long"}', b'{"s":"b"}'], pa.binary())
    monkeypatch.setattr(parser.pa, "array", made_in_pieces)
    found = plain.parse(values)
    assert found.rows.to_pylist() == [{"s": "a"}, None, {"s": "b"}]
    assert found.faults == [(1, "does not fit: more text than a column can hold")]


def test_fail_names_the_record_the_reason_and_the_ways_out() -> None:
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
    found = Sieve(options(badRecords="null", includeHeaders="true")).sift(batch_of(RECORDS), "orders", 3)
    assert found.schema.names == [*SCHEMA_WITH_HEADERS.names, "parsed", "fault"]
    assert found.column("parsed").to_pylist() == [{"id": 1}, None, None, None, {"id": 5}]
    assert found.column("fault").to_pylist() == [
        None,
        "not JSON: Expecting value at character 1",
        None,
        'id: a whole number was expected, not "four"',
        None,
    ]
    assert found.column("value").to_pylist() == [value for _, value, _ in RECORDS]


def test_dead_letters_are_whole_with_their_origin_and_the_rest_goes_on(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, f"{topic}.bad.dlq")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters", "commitGroup": "lake"}
    sieve = Sieve(options(subscribe=topic, **given))
    assert sieve.needs_headers
    found = sieve.sift(batch_of(RECORDS, topic), topic, 3)
    assert found.schema.names == [*SCHEMA.names, "parsed"]
    assert found.column("offset").to_pylist() == [100, 102, 104]
    assert found.column("parsed").to_pylist() == [{"id": 1}, None, {"id": 5}]
    sieve.flush()
    first, second = letters(node.bootstrap, f"{topic}.bad.dlq", 2)
    assert (first.key, first.value) == (b"b", b"poison")
    assert first.headers[:2] == (("trace", b"t-1"), ("trace", None))
    assert (second.key, second.value) == (None, b'{"id":"four"}')
    told = read_dead_letter(second)
    assert (told.origin.topic, told.origin.partition, told.origin.offset) == (topic, 3, 103)
    assert told.origin.timestamp_ms == TIME_MS
    assert (told.group, told.attempts) == ("lake", 1)
    assert told.error_type == "millpond.spark.bad_records.BadRecord"
    assert told.error_message == 'id: a whole number was expected, not "four"'
    assert abs(told.time_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize("headers", ["false", "true"])
@pytest.mark.parametrize("mode", ["fail", "null", "dead_letters"])
def test_the_batch_has_exactly_the_schema_that_spark_was_told(mode: str, headers: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {"valueSchema": SCHEMA_TEXT + ", m map<string,timestamp_ntz>, b binary not null"}
    told = options(badRecords=mode, includeHeaders=headers, **given)
    sieve = Sieve(told)
    records: list[Record] = [(b"k", b'{"id":1,"b":""}', []), (None, None, [])]
    found = sieve.sift(batch_of(records, with_headers=headers == "true" or sieve.needs_headers), "orders", 0)
    assert found.schema.equals(to_arrow_schema(schema_of(told), timezone="UTC"))


def test_one_producer_for_each_cluster_with_its_security(monkeypatch: pytest.MonkeyPatch) -> None:
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
    wanted = {"security.protocol": "sasl_plaintext", "sasl.username": "u", "sasl.password": "p", "client.id": "etl"}
    assert made[0]["settings"].items() >= wanted.items()


def test_headers_stay_where_they_are_wanted_and_the_topic_can_be_named(node: Node, topic: str) -> None:
    create_topic(node.bootstrap, f"{topic}-bad")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters", "includeHeaders": "true"}
    sieve = Sieve(options(subscribe=topic, deadLetterTopic=f"{topic}-bad", **given))
    found = sieve.sift(batch_of(RECORDS, topic), topic, 3)
    assert found.schema.names == [*SCHEMA_WITH_HEADERS.names, "parsed"]
    assert found.column("headers").to_pylist() == [None, None, [{"key": "x", "value": b"y"}]]
    sieve.flush()
    assert read_dead_letter(letters(node.bootstrap, f"{topic}-bad", 2)[0]).group == "spark"


def test_many_letters_do_not_pile_up(node: Node, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_records, "UNACKNOWLEDGED_MAX", 10)
    create_topic(node.bootstrap, f"{topic}.bad.dlq")
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters"}
    sieve = Sieve(options(subscribe=topic, **given))
    found = sieve.sift(batch_of([(None, b"%d" % number, []) for number in range(500)], topic), topic, 0)
    assert len(found) == 0
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
def test_a_query_does_not_feed_on_its_own_dead_letters(reads: dict[str, str]) -> None:
    given = {"valueFormat": "json", "valueSchema": "id long", "badRecords": "dead_letters"}
    sieve = Sieve(read_options({**reads, **given}, "readStream"))
    with pytest.raises(BadRecord, match=r"the query reads orders\.bad\.dlq, where its own dead letters would go"):
        sieve.sift(batch_of(RECORDS), "orders", 3)


def test_a_letter_that_is_refused_fails_the_task(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    create_topic(node.bootstrap, f"{topic}.bad.dlq", config={"max.message.bytes": "2000"})
    given = {"kafka.bootstrap.servers": node.bootstrap, "badRecords": "dead_letters"}
    sieve = Sieve(options(subscribe=topic, **given))
    noise = random.Random(5).randbytes(10_000)
    sieve.sift(batch_of([(None, noise, [])], topic), topic, 0)
    with pytest.raises(SendFailed, match=r"max\.message\.bytes"):
        sieve.flush()


class Orders:
    """A topic with good orders and a few that are poison, and what Spark makes of it."""

    def __init__(self, spark: SparkSession, node: Node, topic: str, checkpoint: str) -> None:
        self._spark, self._node, self._topic, self._checkpoint = spark, node, topic, checkpoint
        create_topic(node.bootstrap, topic, 2)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(400):
            value = b"poison" if number in POISON else order(number)
            producer.produce(topic, value, b"k%d" % number, partition=number % 2, headers=[("n", b"%d" % number)])
        assert producer.flush(60) == 0

    def rows(self, name: str, columns: str, **given: str) -> list[Row]:
        """What a stream has read until now."""
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
    told: dict[str, Any] = {"id": number, "amount": number / 2, "at": "2024-01-02T03:04:05.123Z", "day": "2024-01-02"}
    return json.dumps(told | {"price": "12.50", "tags": [{"k": "a", "v": number}]}).encode()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stream_of_spark_with_poison_in_it(
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
    found = letters(node.bootstrap, f"{topic}.bad.dlq", 3)
    assert sorted((each.key, each.header("n")) for each in found) == [(b"k%d" % n, b"%d" % n) for n in POISON]

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
