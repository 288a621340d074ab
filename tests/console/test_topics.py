"""Topics over HTTP, against a real node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millpond.node.loopback import open_listener
from millpond.testing import Pond
from support.console import Console


@pytest.mark.smoke
def test_the_overview_says_how_the_cluster_is(console: Console) -> None:
    look = console.first_event("/api/live/overview")
    assert look["concerns"] == []
    assert look["topics"] >= 1
    assert [each["node_id"] for each in look["nodes"]] == [1]
    assert look["nodes"][0]["disks"][0]["total_bytes"] > 0


def test_the_list_pages_and_filters(console: Console, pond: Pond) -> None:
    for number in range(60):
        pond.create_topic(f"many-{number:02}")
    first = console.get("/api/topics?filter=MANY").body
    assert (first["fitting"], first["pages"], len(first["rows"])) == (60, 2, 50)
    second = console.get("/api/topics?filter=many&page=2").body
    assert [each["name"] for each in second["rows"]] == [f"many-{number:02}" for number in range(50, 60)]
    # A page that is not there any more is the last one.
    assert console.get("/api/topics?filter=many&page=99").body["page"] == 2
    assert console.get("/api/topics?page=x").status == 400
    (orders,) = console.get("/api/topics?filter=orders").body["rows"]
    assert (orders["partitions"], orders["offsets"]) == (3, 31)
    assert orders["size_bytes"] > 0


def test_a_topic_shows_its_partitions_and_groups(console: Console, pond: Pond) -> None:
    from confluent_kafka import TopicPartition

    reader = pond.consumer("billing")
    reader.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    look = console.first_event("/api/live/topics/orders")
    assert [each["partition"] for each in look["partitions"]] == [0, 1, 2]
    assert sum(each["end"] - each["start"] for each in look["partitions"]) == 31
    assert all(each["last_stable"] == each["end"] for each in look["partitions"])
    assert look["groups"] == {"billing": {"0": 2}}


def test_a_topic_says_how_far_back_it_reaches(console: Console, pond: Pond) -> None:
    topic = pond.create_topic("kept", 2, retention_ms=86_400_000, retention_bytes=1_000_000)
    pond.produce(topic, "x", partition=1)
    kept = console.get(f"/api/topics/{topic}/retention").body
    assert (kept["policy"], kept["keeps_ms"], kept["keeps_bytes"]) == ("delete", 86_400_000, 1_000_000)
    assert list(kept["oldest_ms"]) == ["1"]
    look = console.first_event(f"/api/live/topics/{topic}")
    assert [(each["end"], each["log_end"]) for each in look["partitions"]] == [(0, 0), (1, 1)]


def test_a_missing_topic_is_a_sentence(console: Console) -> None:
    failure = console.first_event("/api/live/topics/order", "failure")
    assert "orders" in failure["error"]
    assert console.get("/api/topics/order/settings").status == 409


@pytest.mark.smoke
def test_a_topic_is_made_changed_and_deleted(console: Console) -> None:
    made = console.change(
        "POST", "/api/topics", {"name": "made", "partitions": 2, "settings": {"retention.ms": "1000"}}
    )
    assert made.status == 201
    assert console.change("POST", "/api/topics", {"name": "made"}).status == 409

    def setting(name: str) -> dict[str, object]:
        (matches,) = (each for each in console.get("/api/topics/made/settings").body if each["name"] == name)
        return dict(matches)

    assert setting("retention.ms")["value"] == "1000"
    assert setting("retention.ms")["is_own"] is True
    assert setting("retention.ms")["meaning"]
    assert console.change("PATCH", "/api/topics/made", {"set": {"retention.ms": "2000"}}).status == 200
    assert setting("retention.ms")["value"] == "2000"
    wrong = console.change("PATCH", "/api/topics/made", {"set": {"retention.ms": "soon"}})
    assert wrong.status == 409
    assert "retention.ms" in wrong.body["error"]
    requests = {"set": {"retention.ms": "soon"}, "dry_run": True}
    assert console.change("PATCH", "/api/topics/made", requests).status == 409
    requests = {"set": {"retention.ms": "3000"}, "dry_run": True}
    assert console.change("PATCH", "/api/topics/made", requests).status == 200
    assert setting("retention.ms")["value"] == "2000"
    assert console.change("PATCH", "/api/topics/made", {"unset": ["retention.ms"]}).status == 200
    assert setting("retention.ms")["is_own"] is False
    assert console.change("PATCH", "/api/topics/made", {"partitions": 4}).status == 200
    assert console.change("PATCH", "/api/topics/made", {"partitions": 1}).status == 409
    assert len(console.first_event("/api/live/topics/made")["partitions"]) == 4
    assert console.change("DELETE", "/api/topics/made", {"confirm": "mad"}).status == 400
    assert console.change("DELETE", "/api/topics/made", {"confirm": "made"}).status == 200
    assert console.get("/api/topics?filter=made").body["rows"] == []


@pytest.mark.parametrize(
    "body", [[], "x", {"name": 1}, {"name": "n", "partitions": "2"}, {"name": "n", "settings": []}]
)
def test_a_request_that_makes_no_sense_is_refused(console: Console, body: object) -> None:
    assert console.change("POST", "/api/topics", body).status == 400


def test_an_unreachable_cluster_is_reported() -> None:
    console = Console("127.0.0.1:1")
    try:
        refused = console.get("/api/topics")
        assert refused.status in (502, 503)
        assert "127.0.0.1:1" in refused.body["error"]
        assert console.get("/").status == 200
    finally:
        console.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.7:8080", "example.com:8080", "[::]:0", "nonsense"])
def test_only_the_loopback_is_listened_on(listen: str) -> None:
    with pytest.raises(ValueError, match=r"Without a login|host:port"):
        open_listener(listen)


def test_an_address_that_others_reach_is_refused() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "millpond.console", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("millpond: ")
    assert "--listen" in refused.stderr
