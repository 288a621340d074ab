"""Plans, traces, hot partitions and pipelines over HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millpond.admin import skew
from millpond.admin.library import PlainLibrary
from millpond.admin.plan import Demand, Machine, make_plan
from millpond.console.cluster_pool import ClusterPool
from millpond.console.context import KEY_SEARCHES_MAX, ConsoleContext
from millpond.console.pipelines import look_at_pipelines
from millpond.console.skew import looks_for_keys
from millpond.remote.cluster import Cluster
from millpond.spark.pipelines.progress import JobFigures, Snapshot
from millpond.spark.pipelines.status import write_status
from millpond.testing import Pond
from support.console import Console, until


def ended(console: Console, job: dict[str, Any]) -> dict[str, Any]:
    return dict(until(lambda: (now := console.get(f"/api/jobs/{job['id']}").body)["state"] != "running" and now))


def test_a_plan_is_that_of_the_command_line(console: Console) -> None:
    body = console.get("/api/plan?messages_per_second=50000&message_bytes=400&retention_seconds=259200").body
    demand = Demand(50_000, 400, 2, 3, 259_200, 2, 1e7, 2)
    plan = make_plan(demand, Machine(20e12, 1e8, 1.25e9))
    assert body["plan"]["brokers"] == plan.brokers
    assert body["plan"]["stored"] == plan.stored
    assert [each["title"] for each in body["sections"]][-1] == "Partitions"
    counted = console.get("/api/plan?core_write_bytes_per_second=1000000").body
    assert "cores" in counted["plan"]["brokers_by"]


def test_a_plan_can_begin_with_what_the_cluster_does(console: Console) -> None:
    matches = console.get("/api/plan/workload").body
    assert matches["replicas"] == 1
    assert matches["record_bytes"] > 10
    assert matches["records_per_second"] >= 0


def test_a_trace_is_measured_and_can_be_stopped(console: Console, pond: Pond) -> None:
    job = ended(console, console.change("POST", "/api/trace", {"count": 3, "linger_ms": 0}).body)
    assert (job["state"], job["done"], job["error"]) == ("done", 3, "")
    hops = {each["name"]: each for each in job["result"]["budget"]["hops"]}
    assert list(hops) == ["linger", "send", "append", "sync", "acknowledge", "fetch", "process"]
    assert 0 < hops["append"]["p50_ms"] < 5_000
    assert job["result"]["notes"]
    long = console.change("POST", "/api/trace", {"count": 1000, "linger_ms": 20}).body
    until(lambda: console.get(f"/api/jobs/{long['id']}").body["done"])
    console.change("POST", f"/api/jobs/{long['id']}/stop", {})
    assert ended(console, long)["state"] == "stopped"
    assert "millpond-trace" not in console.get("/api/topics").data.decode(), "its own topic is deleted again"
    nowhere = ended(console, console.change("POST", "/api/trace", {"topic": "nowhere"}).body)
    assert (nowhere["state"], "no topic nowhere" in nowhere["error"]) == ("failed", True)


def test_topics_are_listed_by_how_uneven_they_are(console: Console, pond: Pond) -> None:
    even, uneven = pond.new_topic(2, "even"), pond.new_topic(2, "uneven")
    for partition in (0, 1):
        pond.produce(even, *(os.urandom(100) for _ in range(50)), partition=partition)
    pond.produce(uneven, *(os.urandom(100) for _ in range(50)), partition=1)
    rows = {each["topic"]: each for each in console.get("/api/skew?filter=even").body["rows"]}
    assert list(rows) == [uneven, even]
    assert (rows[uneven]["busiest"], rows[uneven]["imbalance"]) == (1, 2)
    # Each batch has a head of its own, and how many there are is the producer's affair.
    assert rows[even]["imbalance"] == pytest.approx(1, abs=0.3)


def test_a_hot_key_is_found_in_what_came(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(4)
    pond.produce(topic, *((f"key-{number}", "x" * 50) for number in range(300)), *(("whale", "x" * 50),) * 700)
    (report,) = console.events(f"/api/live/skew/{topic}", "report")
    assert (report["cause"], report["keys"], report["records"]) == ("hot_key", 301, 1000)
    assert report["hottest"][0]["share"] > 0.6
    assert not report["is_estimate"]
    assert "'whale'" in report["advice"]
    (some,) = console.events(f"/api/live/skew/{topic}?records=100", "report")
    assert (some["is_estimate"], some["records"]) == (True, 1000)
    assert 90 <= some["records_read"] <= 110
    assert sum(each["records"] for each in some["loads"]) == 1000
    (nothing,) = console.events(f"/api/live/skew/{topic}?since_ms=99999999999999", "report")
    assert nothing["cause"] == "empty"
    assert "no topic" in console.first_event("/api/live/skew/nowhere", "failure")["error"]


def test_concurrent_key_searches_are_limited(pond: Pond) -> None:
    topic = pond.new_topic(2)
    pond.produce(topic, *((f"key-{number}", "x") for number in range(50)))

    async def play() -> None:
        pool = ClusterPool({"bootstrap.servers": pond.bootstrap})
        context = ConsoleContext(pond.bootstrap, pool, PlainLibrary(pond.bootstrap, {}), Path())
        under_way = [looks_for_keys(context, topic, None, 100) for _ in range(KEY_SEARCHES_MAX)]
        for each in under_way:
            assert (await anext(each)).name == "progress"
        (refused,) = [event async for event in looks_for_keys(context, topic, None, 100)]
        assert refused.name == "failure"
        assert "try again when one is done" in refused.data["error"]
        # Somebody leaves in the middle, and another one stays to the end: both make room.
        await under_way[0].aclose()
        assert [event.name async for event in under_way[1]] == ["report"]
        assert [event.name async for event in looks_for_keys(context, topic, None, 100)] == ["progress", "report"]
        pool.close()

    asyncio.run(play())


def test_a_look_that_is_cut_short_by_its_keys_is_an_estimate(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "KEY_BYTES_MAX", 20 * skew.KEY_COST_BYTES)
    topic = pond.new_topic(2)
    pond.produce(topic, *((f"key-{number}", "x") for number in range(100)))
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        look = skew.SkewAnalysis(cluster, topic, None, 100)
        look.run_for(20)
        facts = look.facts()
    assert (look.is_done, facts.is_estimate, facts.records_read) == (True, True, 20)


def test_the_ends_of_transactions_are_no_records(pond: Pond) -> None:
    topic = pond.new_topic(1)
    producer = Producer(pond.client_settings(transactional_id=f"{topic}-t"))
    producer.init_transactions(20)
    for number in range(4):
        producer.begin_transaction()
        for each in range(8):
            producer.produce(topic, b"x", f"{number}-{each}")
        producer.commit_transaction(20)
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        look = skew.SkewAnalysis(cluster, topic, None, 1000)
        look.run_for(20)
        facts = look.facts()
        sample = skew.SkewAnalysis(cluster, topic, None, 18)
        sample.run_for(20)
    assert (facts.records, facts.records_read, facts.is_estimate) == (32, 32, False)
    assert sample.facts().records == 32
    assert sample.facts().is_estimate


def test_runs_of_pipelines_are_shown_the_running_first(tmp_path: Path) -> None:
    assert look_at_pipelines(tmp_path / "none")["pipelines"] == []
    job = JobFigures("copy", "archive", "running", batch=1, lag=7)
    for name, state in (("a", "finished"), ("b", "running")):
        write_status(tmp_path / name, Snapshot(name, state, 1, 0, 1000, (job,)))  # type: ignore[arg-type]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "status.json").write_text("no JSON")
    look = look_at_pipelines(tmp_path)
    # The one that says it runs holds no lock: its process is gone.
    assert {each["name"]: each["condition"] for each in look["pipelines"]} == {"a": "finished", "b": "dead"}
    assert look["pipelines"][0]["jobs"][0]["lag"] == 7
