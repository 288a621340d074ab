"""Spark's own Kafka connector against our node, and our source beside it: the same options, the same rows.

The connector runs in a Spark of its own, since archives count from a session's start. Where Maven Central does not
answer this is skipped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millpond.wire.records import Record, encode_batch
from support.jars import jars
from support.node import Node
from support.patience import with_time
from support.raw import Raw
from support.spark_child import Failed, SparkChild
from support.topics import create_topic, delete_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MOMENT_MS = 1_750_000_000_123
HEADERS = (("a", b"1"), ("a", None), ("", b""), ("né", b"\xff"))
ODD = [
    Record(0, MOMENT_MS, None, b"no key", ()),
    Record(1, MOMENT_MS + 1, b"", b"", HEADERS),
    Record(2, -1, b"deleted", None, ()),
    Record(3, 0, b"\x00\xff", b"at the beginning of time", (("only", None),)),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkChild]:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    archives = ",".join(map(str, jars("connector")))
    with SparkChild(tmp_path_factory.mktemp("connector"), {"spark.jars": archives}) as started:
        yield started


@pytest.fixture(scope="module")
def filled(node: Node) -> str:
    """Topics with odd records, with three partitions (`many`), and with transactions (`settled`)."""
    with Raw(node.port) as raw:
        raw.create_topic("odd", 1)
        raw.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
        assert not raw.produce("odd", 0, encode_batch(ODD)).error_code
        assert not raw.produce("stamped", 0, encode_batch(ODD[:1])).error_code
        raw.create_topic("many", 3)
        for partition in range(3):
            for first in range(0, 100, 20):
                records = [
                    Record(place, MOMENT_MS + (first + place) * 10, b"%d" % partition, b"%d" % (first + place), ())
                    for place in range(20)
                ]
                assert not raw.produce("many", partition, encode_batch(records)).error_code
    fill_in_transactions(node)
    create_topic(node.bootstrap, "trimmed", 1)
    with Raw(node.port) as raw:
        assert not raw.produce("trimmed", 0, encode_batch(ODD)).error_code
    delete_records(node.bootstrap, "trimmed", 0, 2)
    return node.bootstrap


def fill_in_transactions(node: Node) -> None:
    """Alternately committed and aborted, in two partitions; the last one stays open."""
    create_topic(node.bootstrap, "settled", 2)
    for number, ends in enumerate((True, False, True, None)):
        producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"writer-{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        for value in range(10):
            producer.produce("settled", f"{number}/{value}", partition=value % 2)
        producer.flush()
        if ends is not None:
            (producer.commit_transaction if ends else producer.abort_transaction)()


def both(child: SparkChild, bootstrap: str, **options: object) -> dict[str, Any]:
    """The result of both sources, which must be equal."""
    theirs = child.read("kafka", kafka__bootstrap__servers=bootstrap, **options)
    ours = child.read("millpond", kafka__bootstrap__servers=bootstrap, **options)
    assert ours["schema"] == theirs["schema"]
    assert ours["rows"] == theirs["rows"]
    return theirs


OFFSETS = json.dumps({"many": {"0": 7, "1": -2, "2": 99}})
ENDS = json.dumps({"many": {"0": 41, "1": -1, "2": 100}})
BEYOND = json.dumps({"many": {"0": 410, "1": -1, "2": 100}})
IMPATIENT = {"kafkaConsumer__pollTimeoutMs": 2000}
TIMES = json.dumps({"many": {"0": MOMENT_MS, "1": MOMENT_MS + 305, "2": MOMENT_MS + 990}})


@with_time
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"subscribe": "odd", "includeHeaders": "true"}, 4),
        ({"subscribe": "odd, stamped"}, 5),
        ({"subscribe": "many"}, 300),
        ({"subscribePattern": "ma.y|stam.*", "minPartitions": 7}, 301),
        ({"subscribePattern": "none.*"}, 0),
        ({"assign": '{"many":[2,0]}', "kafka__fetch__max__bytes": 500}, 200),
        ({"subscribe": "many", "startingOffsets": OFFSETS, "endingOffsets": ENDS}, 34 + 100 + 1),
        ({"subscribe": "many", "startingTimestamp": MOMENT_MS + 901, "endingTimestamp": MOMENT_MS + 980}, 3 * 7),
        ({"subscribe": "many", "startingOffsetsByTimestamp": TIMES, "endingTimestamp": MOMENT_MS * 2}, 100 + 69 + 1),
        ({"subscribe": "settled"}, 40),
        ({"subscribe": "settled", "kafka__isolation__level": "read_committed"}, 20),
        ({"subscribe": "trimmed", "includeHeaders": "true"}, 2),
        ({"subscribe": "many", "endingOffsets": BEYOND, "failOnDataLoss": "false", **IMPATIENT}, 300),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_same_options_give_the_same_rows(
    child: SparkChild, filled: str, options: dict[str, object], rows: int
) -> None:
    assert len(both(child, filled, **options)["rows"]) == rows


def test_odd_records_are_read_unchanged(child: SparkChild, filled: str) -> None:
    result = both(child, filled, subscribe="odd", includeHeaders="true")
    assert [field["name"] for field in result["schema"]["fields"]][-2:] == ["timestampType", "headers"]
    keys, values, _, _, _, stamps, kinds, headers = zip(*result["rows"], strict=True)
    assert [None if key is None else base64.b64decode(key) for key in keys] == [each.key for each in ODD]
    assert [None if value is None else base64.b64decode(value) for value in values] == [each.value for each in ODD]
    assert stamps == (
        "2025-06-15 15:06:40.123",
        "2025-06-15 15:06:40.124",
        "1969-12-31 23:59:59.999",
        "1970-01-01 00:00:00",
    )
    assert set(kinds) == {0}
    assert headers[0] is None
    assert headers[1] == [["a", "MQ=="], ["a", None], ["", ""], ["né", "/w=="]]
    assert both(child, filled, subscribe="stamped")["rows"][0][6] == 1


@with_time
@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "nowhere"},
        {"subscribe": "many", "startingOffsets": '{"many":{"0":1}}'},
        {"subscribe": "many", "startingOffsets": "latest"},
        {"subscribe": "many", "endingOffsets": "earliest"},
        {"subscribe": "many", "endingOffsets": BEYOND, **IMPATIENT},
        {"subscribe": "many", "startingOffsets": ENDS, "endingOffsets": OFFSETS},
        {"subscribe": "many", "startingTimestamp": MOMENT_MS + 5_000},
        {"subscribe": "many", "assign": '{"many":[0]}'},
        {"subscribe": "trimmed", "startingOffsets": '{"trimmed":{"0":1}}'},
        {"subscribe": "many", "kafka__auto__offset__reset": "latest"},
        {},
    ],
    ids=lambda options: "-".join(options) or "nothing",
)
def test_both_refuse_the_same_options(child: SparkChild, filled: str, options: dict[str, object]) -> None:
    for kind in ("kafka", "millpond"):
        with pytest.raises(Failed):
            child.read(kind, kafka__bootstrap__servers=filled, **options)


def rows_of(node: Node, topic: str, partitions: int) -> list[list[Record]]:
    with Raw(node.port) as raw:
        return [raw.read_all(topic, partition) for partition in range(partitions)]


def test_both_write_the_same_records_to_the_same_partitions(child: SparkChild, node: Node, topic: str) -> None:
    sql = """
        select cast(id as string) as key, concat('v', id) as value, cast(if(id < 3, id, null) as int) as partition,
               if(id % 2 = 0, null, array(struct('n' as key, cast(string(id) as binary) as value),
                                          struct('none' as key, cast(null as binary) as value))) as headers
        from range(60)"""
    written = {}
    for kind in ("kafka", "millpond"):
        create_topic(node.bootstrap, f"{topic}-{kind}", 4)
        child.write(kind, sql, kafka__bootstrap__servers=node.bootstrap, topic=f"{topic}-{kind}")
        result = rows_of(node, f"{topic}-{kind}", 4)
        assert sum(map(len, result)) == 60
        written[kind] = [sorted((each.key, each.value, each.headers) for each in records) for records in result]
    assert written["millpond"] == written["kafka"]
    assert (b"1", b"v1", (("n", b"1"), ("none", None))) in written["kafka"][1]


COPIES: list[Callable[[int], str]] = [
    lambda _: "kafka",
    # With another format the job continues from its checkpoint.
    lambda run: ("kafka", "millpond", "kafka")[run],
]


@with_time
@pytest.mark.parametrize("kind_of_run", COPIES, ids=["kafka", "changing"])
def test_a_stream_continues_where_it_stopped(
    child: SparkChild, node: Node, topic: str, tmp_path: Path, kind_of_run: Callable[[int], str]
) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(node.bootstrap, source, 2)
    create_topic(node.bootstrap, target, 1)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    place = {"kafka__bootstrap__servers": node.bootstrap}
    for run in range(3):
        for number in range(run * 50, run * 50 + 50):
            producer.produce(source, str(number), partition=number % 2)
        assert producer.flush(60) == 0
        taken = {**place, "subscribe": source, "startingOffsets": "earliest"}
        kind = kind_of_run(run)
        assert child.copy(kind, taken, kind, {**place, "topic": target}, tmp_path / "checkpoint") == 50
    (result,) = rows_of(node, target, 1)
    assert sorted(int(each.value or b"") for each in result) == list(range(150))
