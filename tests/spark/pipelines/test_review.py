"""Reviewing a declaration without Spark, with a node and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.spark.pipelines.declaration import read
from millpond.spark.pipelines.kinds import KINDS
from millpond.spark.pipelines.review import Review, review, review_topics
from millpond.testing.ports import free_port

SCHEMA = "id long, customer string, region string, total double, at timestamp"


def declared(**tables: Any) -> Any:
    given = {
        "name": "orders",
        "source": {"topic": "orders"},
        "parse": {"format": "json", "schema": SCHEMA},
        "archive": {"table": "lake/orders"},
    }
    kept = {name: each for name, each in (given | tables).items() if each is not None}
    return read(kept, "orders.toml", Path("/tmp"), {})


def aggregate(**changed: Any) -> dict[str, Any]:
    return {
        "time": "at",
        "window": "1 minute",
        "measures": {"orders": "count(*)"},
        "to": {"topic": "revenue"},
    } | changed


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"parse": {"format": "json", "schema": "id long, total doubel"}},
         "[parse] schema: character 16: expected a type, such as double, not 'doubel'"),
        ({"parse": {"format": "avro", "schema": "id long"}},
         "[parse] schema: Avro values are read by an Avro schema"),
        ({"source": {"topic": "orders", "options": {"maxOffsetPerTrigger": 5}}},
         "[source] options: there is no option maxOffsetPerTrigger; did you mean maxOffsetsPerTrigger?"),
        ({"source": {"topic": "orders", "options": {"kafka.nope": "1"}}},
         "[source] options: there is no setting kafka.nope"),
        ({"transform": [{"sql": "select * form input"}]}, "[[transform]] 1 sql: character 10: expected a comma"),
        ({"transform": [{"sql": "select totl from input", "name": "less"}]},
         "[[transform]] less sql: character 8: there is no column 'totl'; did you mean total?"),
        ({"transform": [{"sql": "select id from inptu"}]}, "there is no table 'inptu'; did you mean input?"),
        ({"archive": {"table": "t", "partition_by": ["regoin"]}},
         "[archive] partition_by: there is no column 'regoin'; did you mean region?"),
        ({"transform": [{"sql": "select id from input"}]},
         "[archive] time = '_timestamp': character 1: there is no column '_timestamp'"),
        ({"archive": {"table": "t", "raw": True, "time": "at"}},
         "[archive] time = 'at': character 1: there is no column 'at'"),
        ({"aggregate": aggregate(group_by=["regoin"])},
         "[aggregate] group_by: there is no column 'regoin'; did you mean region?"),
        ({"aggregate": aggregate(measures={"revenue": "sum(totl)"}, name="minutes")},
         "[aggregate] minutes: measures.revenue = 'sum(totl)': character 5: there is no column 'totl'"),
        ({"aggregate": aggregate(to={"topic": "revenue", "key": "region"})},
         "[aggregate] to.key = 'region': character 1: there is no column 'region'; there are window_start"),
        ({"quality": {"rules": {"positive": "total >"}}},
         "[quality] rules.positive = 'total >': expected a value, but the text ends"),
        ({"quality": {"rules": {"positive": "total > 0"}}, "transform": [{"sql": "select total from input"}],
          "archive": None}, "[quality] dead_letters (keep it in the transforms, as by select *): there is no column"),
        ({"latest": {"table": "t", "delete_when": "kind = 'gone'"}},
         "[latest] delete_when = \"kind = 'gone'\": character 1: there is no column 'kind'"),
        ({"sessions": {"key": ["user"], "time": "at", "gap": "1 minute", "to": {"table": "t"}}},
         "[sessions] key: there is no column 'user'"),
        ({"skew": {"keys": {"by": "get_json_object(valu, '$.x')"}}},
         "[skew] keys.by = \"get_json_object(valu, '$.x')\": character 17: there is no column 'valu'; did you mean"),
        ({"replay": {"topic": "again", "table": "lake/orders", "where": "total >> > 1"}}, "[replay] where = "),
    ],
)  # fmt: skip
def test_faults_are_found(tables: dict[str, Any], message: str) -> None:
    faults = review(declared(**tables)).faults
    assert message in faults[0], faults


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"parse": {"format": "raw"}, "archive": {"table": "t", "columns": {"text": "cast(value as string)"}}},
        {"parse": {"format": "json", "schema": SCHEMA, "bad_records": "null"},
         "transform": [{"sql": "select *, _fault is null as fine, _headers from input"}]},
        {"transform": [{"sql": "select *, total * 2 as twice from input", "name": "one"},
                       {"sql": "select o.*, i.twice t from input i join one o using (id)"}],
         "aggregate": aggregate(
             group_by={"r": "lower(region)"}, measures={"n": "sum(t)"}, to={"topic": "x", "key": "r"})},
        {"archive": {"table": "t", "partition_by": ["date", "region", "shop"], "columns": {"shop": "customer"}}},
        {"transform": [{"sql": "select id, total * 2 as twice from input"}],
         "archive": {"table": "t", "partition_by": []}},
        {"archive": {"table": "t", "time": "when", "columns": {"when": "at + interval 1 hour"}}},
        {"aggregate": aggregate(measures={"last": "max(_event_time)"})},
        {"aggregate": aggregate(input="input"), "transform": [{"sql": "select 1 as one, _timestamp from input"}]},
    ],
)  # fmt: skip
def test_valid_declarations_have_no_faults(tables: dict[str, Any]) -> None:
    result = review(declared(**tables))
    assert (result.faults, result.notes) == ([], [])


def test_the_examples_of_all_kinds_have_no_faults() -> None:
    import tomllib

    for kind in KINDS.values():
        result = review(declared(**{"archive": None} | tomllib.loads(kind.example)))
        assert (result.faults, result.notes) == ([], []), kind.name


def test_what_only_spark_can_check_is_a_note() -> None:
    steps = [{"sql": "values (1)"}, {"sql": "select *, warm.y from input, db.warm"}]
    result = review(declared(transform=steps))
    assert result.faults == []
    assert result.notes == [
        "[[transform]] 1 sql has a query that begins with VALUES, which only Spark can parse; its columns were "
        "not checked",
        "[[transform]] 2 sql reads db.warm, which is not a step of this pipeline: it must be a table that "
        "Spark knows",
    ]


def test_missing_topics_are_listed(millpond: Any) -> None:
    millpond.create_topic("orders")
    at = {"bootstrap": millpond.bootstrap}

    def missing(**source: Any) -> list[str]:
        result = Review()
        review_topics(declared(source=at | source), result)
        assert result.notes == []
        return result.missing

    assert missing(topic="orders") == []
    assert missing(pattern="ord.*") == []
    where = millpond.bootstrap
    assert missing(topic=["orders", "odrers", "zzz"]) == [
        f"[source] topic: {where} has no topic odrers; did you mean orders?",
        f"[source] topic: {where} has no topic zzz; create it with `millpond topic create zzz`",
    ]
    assert missing(pattern="x.*") == [f"[source] pattern: no topic at {where} matches x.*"]


def test_an_unreachable_cluster_is_a_note() -> None:
    result = Review()
    review_topics(declared(source={"topic": "orders", "bootstrap": f"127.0.0.1:{free_port()}"}), result)
    assert result.missing == []
    assert "does not answer, so its topics were not checked" in result.notes[0]
