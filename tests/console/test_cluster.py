"""The console beside a cluster: its pages with three nodes; moves and a drain with four."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.testing import Ponds, ponds
from support.browser import READY, Tab, unnamed
from support.console import Console, until

PAGES = (
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/records",
    "/topics/orders/settings",
    "/groups",
    "/groups/billing",
    "/letters",
    "/transactions",
    "/cluster",
    "/pipelines",
    "/hot",
    "/hot/orders",
    "/plan",
    "/trace",
)


def filled(cluster: Ponds) -> None:
    cluster.create_topic("orders", 4, replicas=2)
    cluster.produce("orders", *((f"key-{number}", "x") for number in range(40)))


def put_on_one_node_each(cluster: Ponds) -> None:
    """A topic, and one with letters that is known by their headers; each partition is gone with its node."""
    for name, headers in (("single", {}), ("graves", {"dlq.topic": b"orders"})):
        cluster.create_topic(name, 3, replicas=1)
        for partition in range(3):
            cluster.produce(name, "x", partition=partition, headers=headers)


def assert_what_is_left_is_shown(console: Console) -> None:
    """One partition of each has no leader."""
    page = until(lambda: (now := console.get("/api/topics/single/records").body).get("leaderless") and now)
    (away,) = page["leaderless"]
    assert sorted(each["partition"] for each in page["records"]) == sorted({0, 1, 2} - {away})
    assert len(console.get("/api/topics/single/partitions").body) == 3
    refused = console.get(f"/api/topics/single/records?partition={away}")
    assert (refused.status, "has no leader now" in refused.body["error"]) == (409, True)
    (node,) = list(console.events("/api/live/topics/single/search?text=x", "found"))[-1:]
    assert (node["is_done"], node["leaderless"]) == (True, [away])
    assert console.first_event("/api/live/topics/single/tail", "records")["leaderless"] == [away]
    letters = until(lambda: (now := console.get("/api/letters/graves").body).get("leaderless") and now)
    assert (len(letters["letters"]), len(letters["leaderless"])) == (2, 1)
    counts = console.get("/api/letters/graves/counts").body
    assert (counts["records"], counts["leaderless"]) == (2, letters["leaderless"])
    (listed,) = [each for each in console.get("/api/letters").body["topics"] if each["topic"] == "graves"]
    assert (listed["records"], listed["is_estimate"], listed["leaderless"]) == (2, True, 1)


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[Ponds, Console]]:
    from confluent_kafka import TopicPartition

    with ponds(nodes=3) as started:
        filled(started)
        put_on_one_node_each(started)
        started.consumer("billing").commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        running = Console(started.bootstrap)
        yield started, running
        running.close()


def test_every_page_shows_a_cluster(browser: Any, three: tuple[Ponds, Console]) -> None:
    tab = Tab(browser, three[1])
    for path in PAGES:
        page = tab.open(path)
        page.locator(READY).first.wait_for()
        assert page.locator(".fault").count() == 0, path
        assert unnamed(page) == []
    page = tab.open("/trace?count=3&topic=orders")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("heading", name="Hop by hop").wait_for()
    assert "replicate" in page.locator(".waterfall .name").all_text_contents()
    page = tab.open("/cluster")
    page.get_by_text("Node 3").first.wait_for()
    assert page.locator(".chip", has_text="controller").count() == 1
    page.get_by_role("button", name="Drain node 3").click()
    page.get_by_role("button", name="Show the plan").click()
    # The brokers' own topics have a copy on each of three nodes.
    page.get_by_text("Node 3 cannot be drained").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Move partitions").click()
    page.get_by_label("Topic", exact=True).fill("orders")
    page.get_by_label("To the nodes").fill("3, 1")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name=re.compile(r"Move \d+ partition")).click()
    page.get_by_text(re.compile(r"\d+ partitions? moved")).wait_for()
    tab.context.close()
    # What a drain is refused with, the browser notes in its console.
    assert [each for each in tab.faults if "409" not in each] == []


def test_an_offline_node_is_shown_and_the_pages_still_work(browser: Any, three: tuple[Ponds, Console]) -> None:
    cluster, console = three
    tab = Tab(browser, console)
    page = tab.open("/cluster")
    page.get_by_text("Node 2").first.wait_for()
    cluster[2].kill()
    page.locator(".state.bad", has_text="away").wait_for()
    page = tab.open("/")
    page.get_by_text("Node 2 is offline.").wait_for()
    assert_what_is_left_is_shown(console)
    page = tab.open("/topics/single/records")
    page.get_by_text("has no leader now and is left out").wait_for()
    page.get_by_label("Partition", exact=True).locator("option", has_text="(no leader)").wait_for(state="attached")
    page = tab.open("/")
    cluster[2].start()
    page.get_by_text("Node 2 is offline.").wait_for(state="detached")
    tab.context.close()
    assert tab.faults == []


@pytest.fixture(scope="module")
def four() -> Iterator[Console]:
    with ponds(nodes=4) as started:
        filled(started)
        running = Console(started.bootstrap)
        yield running
        running.close()


def move(console: Console, body: dict[str, Any]) -> dict[str, Any]:
    """Plan it, and let just that be done."""
    plan = console.change("POST", "/api/cluster/moves", body | {"dry_run": True})
    assert plan.status == 200, plan.body
    started = console.change("POST", "/api/cluster/moves", body | {"agreed": plan.body["agreed"]})
    assert started.status == 202, started.body
    return ended(console, started.body)


def ended(console: Console, job: dict[str, Any]) -> dict[str, Any]:
    path = f"/api/jobs/{job['id']}"
    return dict(until(lambda: (now := console.get(path).body)["state"] != "running" and now, 60))


def replicas(console: Console) -> dict[int, list[int]]:
    look = console.first_event("/api/live/topics/orders")
    return {each["partition"]: each["replicas"] for each in look["partitions"]}


def test_partitions_move_as_planned(four: Console) -> None:
    expected: dict[str, Any] = {"what": "move", "topic": "orders", "partitions": [0], "nodes": [3, 1]}
    stale = ended(four, four.change("POST", "/api/cluster/moves", expected | {"agreed": "another plan"}).body)
    assert (stale["state"], "Nothing was moved" in stale["error"]) == ("failed", True)
    job = move(four, expected)
    assert (job["state"], job["error"]) == ("done", "")
    until(lambda: replicas(four)[0] == [3, 1])
    assert four.change("POST", "/api/cluster/moves", expected | {"nodes": [9], "dry_run": True}).status == 409
    more = move(four, {"what": "factor", "topic": "orders", "factor": 3})
    assert (more["state"], more["result"]["moved"]) == ("done", 4)
    until(lambda: all(len(each) == 3 for each in replicas(four).values()))
    assert move(four, {"what": "balance"})["error"] == ""


def test_a_drained_node_holds_nothing_until_it_is_one_like_the_others_again(four: Console) -> None:
    job = move(four, {"what": "drain", "nodes": [2]})
    assert (job["state"], job["error"]) == ("done", "")
    until(lambda: all(2 not in each for each in replicas(four).values()))

    def drained() -> list[int]:
        nodes = four.first_event("/api/live/cluster")["nodes"]
        return [each["node_id"] for each in nodes if each["is_drained"]]

    assert drained() == [2]
    assert four.change("POST", "/api/cluster/undrain", {"node": 9}).status == 409
    assert four.change("POST", "/api/cluster/undrain", {"node": 2}).status == 200
    until(lambda: drained() == [])
