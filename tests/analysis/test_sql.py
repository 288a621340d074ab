"""SQL over topics: what a query returns, what it reads for that, and what it says when it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="pip install 'millpond[sql]'")

from millpond import Consumer, TopicPartition, write_arrow
from millpond.admin.topics import delete_records
from millpond.analysis.errors import BadValue, RecordsGone
from millpond.analysis.ranges import find_ranges
from millpond.analysis.sql import session
from millpond.analysis.sql.session import QueryCancelled, QueryFailed, Session, TableOptions
from millpond.client.dead_letters import Origin, dead_letter
from millpond.client.message import Message
from millpond.remote.cluster import Cluster
from millpond.testing import Pond

Ask = Callable[..., list[dict[str, Any]]]
BASE = datetime(2026, 1, 31, 8, tzinfo=UTC)


class Database:
    """A session that remembers what its last query read."""

    def __init__(self, pond: Pond, **options: Any) -> None:
        self.session = Session({"bootstrap.servers": pond.bootstrap}, TableOptions(**options))

    def __call__(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.session.run(query).read_all().to_pylist()
        return rows

    @property
    def read(self) -> list[tuple[int, int, int]]:
        """Partition, first and last offset of each range that was read."""
        return sorted(
            (each.partition.partition, each.start, each.end - 1)
            for scan in self.session.scans
            for each in scan.ranges
        )


@pytest.fixture
def ask(pond: Pond) -> Iterator[Database]:
    database = Database(pond)
    yield database
    database.session.close()


@pytest.fixture(scope="module")
def orders(pond: Pond) -> str:
    """A hundred orders in each of three partitions, a second apart."""
    topic = pond.create_topic("orders", 3)
    for partition in range(3):
        for number in range(0, 100, 10):
            pond.producer.produce(
                topic,
                json.dumps({"customer": f"c{number % 30}", "amount": number / 2, "tags": ["a"]}),
                f"k{number}",
                partition=partition,
                timestamp=int((BASE + timedelta(seconds=number)).timestamp() * 1000),
            )
            for more in range(1, 10):
                pond.producer.produce(
                    topic,
                    json.dumps({"customer": "other", "amount": number + more}),
                    None,
                    partition=partition,
                    timestamp=int((BASE + timedelta(seconds=number + more)).timestamp() * 1000),
                )
    assert pond.producer.flush(30) == 0
    return topic


ALL = [(0, 0, 99), (1, 0, 99), (2, 0, 99)]


def test_groups_and_sums(orders: str, ask: Any) -> None:
    rows = ask("select customer, count(*) n, sum(amount) s from orders group by customer order by customer")
    assert [row["customer"] for row in rows] == ["c0", "c10", "c20", "other"]
    assert [row["n"] for row in rows] == [12, 9, 9, 270]
    assert ask.read == ALL
    (scan,) = ask.session.scans
    assert set(scan.columns) == {"customer", "amount"}
    assert scan.rows_read == 300


@pytest.mark.parametrize(
    ("where", "read", "count"),
    [
        ("_partition = 1", [(1, 0, 99)], 100),
        ("_partition in (0, 2)", [(0, 0, 99), (2, 0, 99)], 200),
        ("_partition > 5", [], 0),
        ("_offset >= 90", [(0, 90, 99), (1, 90, 99), (2, 90, 99)], 30),
        ("_offset between 10 and 19 and _partition = 0", [(0, 10, 19)], 10),
        # DuckDB hands over conditions on one column each.
        ("_partition = 0 and _offset < 3 or _partition = 2 and _offset > 97", [(0, 0, 99), (2, 0, 99)], 5),
        ("_offset < 3 or _offset > 97", ALL, 15),
        ("_offset = 42", [(0, 42, 42), (1, 42, 42), (2, 42, 42)], 3),
        ("_topic = 'orders' and _offset < 1", [(0, 0, 0), (1, 0, 0), (2, 0, 0)], 3),
        ("_topic = 'others'", [], 0),
        ("_timestamp >= timestamptz '2026-01-31 08:01:35Z'", [(0, 95, 99), (1, 95, 99), (2, 95, 99)], 15),
        ("_timestamp > now() - interval 1 hour", [], 0),
        ("_timestamp < timestamptz '2026-01-31 08:00:05Z'", ALL, 15),
        ("_offset % 10 = 3", ALL, 30),
        ("not (_partition = 0)", [(1, 0, 99), (2, 0, 99)], 200),
        ("_partition is null", ALL, 0),
        ("_key = 'k10' and _offset > 5", [(0, 6, 99), (1, 6, 99), (2, 6, 99)], 3),
    ],
)
def test_bounds_limit_what_is_read(orders: str, ask: Any, where: str, read: list[Any], count: int) -> None:
    assert ask(f"select count(*) n from orders where {where}") == [{"n": count}]
    assert ask.read == read


def test_only_what_is_asked_for_is_parsed(orders: str, ask: Any) -> None:
    ask("select count(*) from orders")
    assert [scan.is_parsing for scan in ask.session.scans] == [False]
    ask("select max(amount) from orders where _offset < 5")
    assert [(scan.is_parsing, set(scan.columns)) for scan in ask.session.scans] == [(True, {"_offset", "amount"})]


def test_joins_of_topics_files_and_themselves(orders: str, pond: Pond, ask: Any, tmp_path: Any) -> None:
    customers = pond.create_topic("customers-v1")
    write_arrow(customers, [{"id": "c0", "name": "ann"}, {"id": "c10", "name": "ben"}], bootstrap=pond.bootstrap)
    file = tmp_path / "tags.csv"
    file.write_text("name,tag\nann,gold\nben,tin\n")
    query = f"""
        select tag, count(*) n from orders o join "customers-v1" c on c.id = o.customer
        join '{file}' t on t.name = c.name group by tag order by tag
    """
    assert ask(query) == [{"tag": "gold", "n": 12}, {"tag": "tin", "n": 9}]
    assert ask("select count(*) n from orders a join orders b using (_partition, _offset)") == [{"n": 300}]
    with_name = "with orders_of as (select * from orders where _offset < 2) select count(*) n from orders_of"
    assert ask(with_name) == [{"n": 6}]


def test_values_that_are_not_json(pond: Pond, ask: Any) -> None:
    text, raw = pond.create_topic("lines"), pond.create_topic("bytes")
    pond.produce(text, ("k", "a line"), (None, None))
    pond.produce(raw, (b"\xff", b"\xfe"))
    assert ask("select _key, _value from lines order by _offset") == [
        {"_key": "k", "_value": "a line"},
        {"_key": None, "_value": None},
    ]
    assert ask('select _key, _value from "bytes"') == [{"_key": b"\xff", "_value": b"\xfe"}]
    pond.create_topic("nothing")
    assert ask("select count(*) n from nothing") == [{"n": 0}]


def test_keys_that_only_seem_to_be_text(pond: Pond, ask: Any) -> None:
    topic = pond.create_topic("odd-keys")
    head = [("k", "{}")] * 600
    pond.produce(topic, *head, (b"\xff", "{}"), *head)
    with pytest.raises(BadValue, match=r"odd-keys\[0\]@600: the key is not UTF-8 text: read keys as bytes"):
        ask('select count(distinct _key) n from "odd-keys"')
    assert Database(pond, keys="bytes")('select count(distinct _key) n from "odd-keys"') == [{"n": 2}]


def test_forms_and_bounds_of_tables(orders: str, pond: Pond) -> None:
    options = {"values": {"orders": "text"}, "start": -2, "end": None}
    ask = Database(pond, **options)
    rows = ask("select _value from orders where _partition = 0 order by _offset")
    assert json.loads(rows[1]["_value"]) == {"customer": "other", "amount": 99}
    bounded = Database(pond, end="5")
    assert bounded("select count(*) n from orders") == [{"n": 15}]


def test_a_value_that_does_not_parse(pond: Pond) -> None:
    topic = pond.create_topic("half")
    head = ['{"a": 1}'] * 600
    pond.produce(topic, *head, '{"a": "late"}', *head)
    ask = Database(pond)
    with pytest.raises(
        BadValue, match=r'half\[0\]@600 does not parse as json: a: a whole number was expected, not "l'
    ):
        ask("select sum(a) from half")
    assert ask("select count(*) n from half") == [{"n": 1201}], "nobody asked for the value"
    kept = Database(pond, bad="null")
    assert kept("select sum(a) s, count(_fault) f from half") == [{"s": 1200, "f": 1}]


def test_tables_about_the_cluster(orders: str, pond: Pond, ask: Any) -> None:
    rows = ask("select * from millpond.topics where topic = 'orders'")
    assert rows == [{"topic": "orders", "partitions": 3, "offsets": 300, "is_internal": False}]
    (partition,) = ask("select * from millpond.partitions where topic = 'orders' and partition = 2")
    assert (partition["start_offset"], partition["end_offset"]) == (0, 100)
    assert partition["leader"] in partition["in_sync"]
    with Consumer("billing", ["orders"], bootstrap=pond.bootstrap) as consumer:
        assert len([consumer.next(20) for _ in range(7)]) == 7
        consumer.commit()
    assert ask("select sum(lag) lag from millpond.lag where \"group\" = 'billing'") == [{"lag": 293}]
    with pytest.raises(QueryFailed, match=r"there is no table millpond\.lags; there are millpond\.topics, "):
        ask("select * from millpond.lags")


def test_dead_letters(pond: Pond, ask: Any) -> None:
    topic = pond.create_topic("billing.dlq")
    message = Message("orders", 1, 7, 1_700_000_000_000, b"k", b"v", ())
    letter = dead_letter(
        message, ValueError("no"), to=topic, origin=Origin("orders", 1, 7, 1_700_000_000_000), attempts=3,
        group="billing", now_ms=1_700_000_001_000,
    )  # fmt: skip
    pond.producer.produce(topic, letter.value, letter.key, headers=list(letter.headers))
    pond.producer.flush()
    (row,) = ask("select * exclude (timestamp) from millpond.dead_letters where topic = 'billing.dlq'")
    assert row == {
        "topic": topic, "partition": 0, "offset": 0, "key": b"k", "value": b"v", "error_type": "ValueError",
        "error_message": "no", "group": "billing", "attempts": 3, "origin_topic": "orders", "origin_partition": 1,
        "origin_offset": 7,
    }  # fmt: skip


def test_what_would_be_read(orders: str, pond: Pond, ask: Any) -> None:
    scans, plan = ask.session.explain("select amount from orders where _offset >= 90 and customer = 'c0'")
    assert "SCAN" in plan
    (scan,) = scans
    assert (scan.topic, scan.offsets, scan.offsets_all, scan.rows_read) == ("orders", 30, 300, 0)
    assert "customer" in scan.filter
    scans, _ = ask.session.explain("select count(*) from orders a join orders b using (_offset)")
    assert {scan.topic for scan in scans} == {"orders"}
    with pytest.raises(QueryFailed, match="only a single SELECT can be explained"):
        ask.session.explain("create table t as select * from orders")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from order_lines_of", r"There is no topic order_lines_of.* A file is named in quotes"),
        ("select * from ordesr", r"There is no topic ordesr; did you mean orders\?"),
        ("select amuont from orders", 'Referenced column "amuont" not found.*"amount"'),
        ("selct 1", "syntax error at or near"),
        ("select * from 'missing.parquet'", "No files found"),
        ("select 1 / 'x'", "Could not convert"),
    ],
)
def test_what_cannot_be_asked(orders: str, ask: Any, query: str, message: str) -> None:
    with pytest.raises(QueryFailed, match=message):
        ask(query)


def test_a_query_that_is_interrupted(orders: str, ask: Any) -> None:
    from threading import Timer

    endless = "select count(*) from range(100000000000) a, orders b where a.range % 7 = b._offset"
    timer = Timer(1, ask.session.interrupt)
    timer.start()
    with pytest.raises(QueryCancelled, match="the query was cancelled"):
        ask(endless)
    timer.join()
    assert ask("select 1 as one") == [{"one": 1}]


def test_a_session_sees_what_was_written_between_its_queries(pond: Pond, ask: Any) -> None:
    topic = pond.create_topic("growing")
    pond.produce(topic, '{"a": 1}')
    assert ask("select sum(a) s from growing") == [{"s": 1}]
    pond.produce(topic, '{"a": 2}')
    assert ask("select sum(a) s from growing") == [{"s": 3}]


def test_records_deleted_while_a_query_reads(pond: Pond, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = pond.create_topic("trimmed")
    pond.produce(topic, *["{}"] * 10)

    def find_and_delete(*arguments: Any, **more: Any) -> Any:
        found = find_ranges(*arguments, **more)
        with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
            delete_records(cluster, {TopicPartition(topic, 0): 5})
        return found

    monkeypatch.setattr(session, "find_ranges", find_and_delete)
    with pytest.raises(RecordsGone, match=r"trimmed\[0\]: the records from offset 0 on were deleted"):
        ask("select count(*) n from trimmed")
