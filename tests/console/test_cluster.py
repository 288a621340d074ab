"""The console beside a cluster of three nodes: its pages, a drain, moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.testing import Ponds, ponds
from support.browser import READY, Tab, unnamed
from support.console import Console, until

PAGES = ("/", "/topics", "/topics/orders", "/groups", "/letters", "/transactions", "/cluster", "/hot/orders", "/trace")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    # With three copies of something, none of three nodes could be emptied.
    with ponds(nodes=3, settings={"offsets.topic.replication.factor": 2}) as started:
        started.create_topic("orders", 4, replicas=2)
        started.produce("orders", *((f"key-{number}", "x") for number in range(40)))
        yield started


@pytest.fixture(scope="module")
def console(cluster: Ponds) -> Iterator[Console]:
    running = Console(cluster.bootstrap)
    yield running
    running.close()


def move(console: Console, body: dict[str, Any]) -> dict[str, Any]:
    """Plan it, and let just that be done."""
    plan = console.change("POST", "/api/cluster/moves", body | {"dry_run": True})
    assert plan.status == 200, plan.body
    started = console.change("POST", "/api/cluster/moves", body | {"agreed": plan.body["agreed"]})
    assert started.status == 202, started.body
    path = f"/api/jobs/{started.body['id']}"
    return dict(until(lambda: (now := console.get(path).body)["state"] != "running" and now, 60))


def replicas(console: Console, topic: str = "orders") -> dict[int, list[int]]:
    look = console.first_event(f"/api/live/topics/{topic}")
    return {each["partition"]: each["replicas"] for each in look["partitions"]}


def test_every_page_shows_a_cluster(browser: Any, console: Console) -> None:
    tab = Tab(browser, console)
    for path in PAGES:
        page = tab.open(path)
        page.locator(READY).first.wait_for()
        assert page.locator(".fault").count() == 0, path
        assert unnamed(page) == []
    tab.open("/cluster")
    tab.page.get_by_text("Node 3").first.wait_for()
    tab.page.get_by_role("button", name="Drain node 3").click()
    tab.page.get_by_role("button", name="Show the plan").click()
    tab.page.get_by_role("button", name=re.compile(r"Move \d+ partition")).wait_for()
    tab.context.close()
    assert tab.faults == []


def test_partitions_are_moved_as_the_plan_said(console: Console) -> None:
    wanted: dict[str, Any] = {"what": "move", "topic": "orders", "partitions": [0], "nodes": [3, 1]}
    plan = console.change("POST", "/api/cluster/moves", wanted | {"dry_run": True}).body
    assert plan["moves_total"] <= 1
    stale = console.change("POST", "/api/cluster/moves", wanted | {"agreed": "another plan"}).body
    ended = until(lambda: (now := console.get(f"/api/jobs/{stale['id']}").body)["state"] != "running" and now)
    assert (ended["state"], "Nothing was moved" in ended["error"]) == ("failed", True)
    job = move(console, wanted)
    assert (job["state"], job["error"]) == ("done", "")
    until(lambda: replicas(console)[0] == [3, 1])
    assert console.change("POST", "/api/cluster/moves", wanted | {"nodes": [9], "dry_run": True}).status == 409
    more = move(console, {"what": "factor", "topic": "orders", "factor": 3})
    assert more["state"] == "done"
    until(lambda: all(len(each) == 3 for each in replicas(console).values()))
    assert move(console, {"what": "factor", "topic": "orders", "factor": 2})["state"] == "done"
    assert move(console, {"what": "balance"})["error"] == ""


def test_a_drained_node_holds_nothing_until_it_is_one_like_the_others_again(console: Console) -> None:
    # With three replicas of some topics a node of three cannot be emptied: that is said before anything moves.
    job = move(console, {"what": "drain", "nodes": [2]})
    if job["state"] == "failed":
        pytest.fail(job["error"])
    until(lambda: all(2 not in each for each in replicas(console).values()))
    node = next(each for each in console.first_event("/api/live/cluster")["nodes"] if each["node_id"] == 2)
    assert node["is_drained"]
    assert console.change("POST", "/api/cluster/undrain", {"node": 9}).status == 409
    assert console.change("POST", "/api/cluster/undrain", {"node": 2}).status == 200
    look = console.first_event("/api/live/cluster")
    assert not any(each["is_drained"] for each in look["nodes"])
