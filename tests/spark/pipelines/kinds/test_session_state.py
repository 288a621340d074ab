"""Sessions with state: first without Spark, then as a stream."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark_kinds import at, seconds_of

pytest.importorskip("pyspark")

from millpond.spark.pipelines.kinds.session_state import Event, Rules, Session
from millpond.spark.pipelines.kinds.sessions import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOWS = ("count", "sum", "min", "max", "first", "last")
RULES = Rules(gap_us=30, longest_us=100, functions=HOWS)


def event(time: int, given: Any = 1, ends: bool = False) -> Event:
    return (time, ends, *[given] * len(HOWS))


def closed(rules: Rules, events: list[Event]) -> list[Session]:
    open_session, ended = rules.take(None, events)
    return [*ended, open_session] if open_session is not None else ended


def test_measures_are_folded_as_in_sql() -> None:
    (session,) = closed(RULES, [event(0, 5), event(1, None), event(2, 3), event(3, None)])
    assert session == (0, 3, 4, 2, 8, 3, 5, 5, None), "nulls count for nothing, but the last one is the last"
    (session,) = closed(RULES, [event(0, None), event(1, Decimal("1.5"))])
    assert session == (0, 1, 2, 1, Decimal("1.5"), Decimal("1.5"), Decimal("1.5"), None, Decimal("1.5"))


def test_a_session_ends_by_the_gap_by_its_length_and_by_an_event() -> None:
    def spans(*events: Event) -> list[tuple[int, int, int]]:
        return [session[:3] for session in closed(RULES, list(events))]

    assert spans(event(0), event(29), event(58)) == [(0, 58, 3)]
    assert spans(event(0), event(30)) == [(0, 30, 2)], "just at the gap, as Spark's own windows have it"
    assert spans(event(0), event(31)) == [(0, 0, 1), (31, 31, 1)]
    assert spans(*[event(n * 25) for n in range(6)]) == [(0, 100, 5), (125, 125, 1)]
    assert spans(event(0), event(1, ends=True), event(2)) == [(0, 1, 2), (2, 2, 1)]
    assert RULES.end_us((0, 80, 1)) == 100
    assert Rules(30, None, HOWS).end_us((0, 80, 1)) == 110


def test_sessions_do_not_depend_on_how_events_are_batched() -> None:
    chance = random.Random(5)
    events = [event(time, time, chance.random() < 0.1) for time in sorted(chance.sample(range(3000), 200))]
    whole = RULES.take(None, events)
    for _ in range(20):
        session: Session | None = None
        ended: list[Session] = []
        rest = events
        while rest:
            size = chance.randint(1, 30)
            session, more = RULES.take(session, rest[:size])
            ended += more
            rest = rest[size:]
        assert (session, ended) == whole


def test_a_stream_has_the_same_sessions_for_any_order_of_events(spark: SparkSession, tmp_path: Path) -> None:
    job = Sessions(
        key={"user": "lower(user)"},
        time="at",
        gap="30 s",
        longest="100 s",
        ends_when="page = 'logout'",
        watermark="60 s",
        measures={"pages": "count(*)", "spent": "sum(price)", "first_page": "first(page)", "last_page": "last(page)"},
        to={"table": "t"},
    )
    batches: list[list[tuple[str, float, str, int | None]]] = [
        [("Ann", 20, "shop", 2), ("ann", 0.000_001, "home", None), ("bob", 10, "home", 1), ("ann", 21, "logout", 3)],
        [("ann", 10, "list", 5), ("ann", 35, "again", 7), ("bob", 30, "shop", 1), ("eve", 1000, "x", 0)],
    ]
    schema = "user string, at timestamp, page string, price int"
    source = str(tmp_path / "source")
    for rows in batches:
        events_of_batch = [(user, at(second), page, price) for user, second, page, price in rows]
        spark.createDataFrame(events_of_batch, schema).coalesce(1).write.mode("append").parquet(source)
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    stream = job.shape(spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source).coalesce(1))
    query = (
        stream.writeStream.format("memory").queryName("kept_sessions").outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    # The last session is still open; the batch without rows at the end has closed the others.
    result = {
        (r.user, round(seconds_of(r.session_start), 6), seconds_of(r.session_end), *tuple(r)[3:])
        for r in spark.table("kept_sessions").collect()
    }
    assert result == {
        ("ann", 0.000_001, 21, 4, 4, 10, "home", "logout"),
        ("ann", 35, 35, 1, 1, 7, "again", "again"),
        ("bob", 10, 30, 2, 2, 2, "home", "shop"),
    }
