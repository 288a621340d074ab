"""Records over HTTP: pages, single ones, search, live tail, producing; whatever they contain."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from typing import Any

import pytest

from millpond.console.records import PREVIEW, WHOLE
from millpond.testing import Pond
from support.console import Console


def data(shown: dict[str, Any]) -> bytes:
    return b64decode(shown["data"])


def test_a_page_begins_at_the_given_point(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(1)
    pond.produce(topic, *(str(number) for number in range(120)))

    def offsets(query: str) -> list[int]:
        page = console.get(f"/api/topics/{topic}/records?{query}").body
        return [each["offset"] for each in page["records"]]

    assert offsets("") == list(range(70, 120))
    assert offsets("from=beginning") == list(range(50))
    assert offsets("from=30&limit=3") == [30, 31, 32]
    assert offsets("from=-2") == [118, 119]
    assert offsets("since_ms=0&limit=2") == [0, 1]
    assert offsets("since_ms=99999999999999") == []
    assert console.get(f"/api/topics/{topic}/records?from=999").status == 409
    assert console.get(f"/api/topics/{topic}/records?from=soon").status == 400
    assert console.get(f"/api/topics/{topic}/records?limit=100000").status == 400
    assert console.get(f"/api/topics/{topic}/records?partition=7").status == 409


def test_pages_go_on_in_all_partitions(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(3)
    for number in range(30):
        pond.produce(topic, str(number), partition=number % 3)
    path = f"/api/topics/{topic}/records?limit=8"

    def walk(first: str, side: str, edge: int) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        page = console.get(f"{path}&{first}").body
        while page["records"]:
            seen += [(each["partition"], each["offset"]) for each in page["records"]]
            cursor = ",".join(f"{each['partition']}:{each['shown'][edge]}" for each in page["partitions"])
            page = console.get(f"{path}&{side}={cursor}").body
        return seen

    everything = [(partition, offset) for partition in range(3) for offset in range(10)]
    assert sorted(walk("from=beginning", "after", 1)) == everything
    assert sorted(walk("from=-8", "before", 0)) == everything
    for wrong in ("x", "0", "0:", "0:1,", "0:-1", "0:1;1:1", f"0:{2**63}"):
        assert console.get(f"{path}&before={wrong}").status == 400


def test_all_partitions_are_shown_in_the_order_of_time(console: Console) -> None:
    page = console.get("/api/topics/orders/records").body
    times = [each["timestamp_ms"] for each in page["records"]]
    assert times == sorted(times)
    assert (len(page["partitions"]), page["leaderless"]) == (3, [])
    leaders = console.get("/api/topics/orders/partitions").body
    assert [each["partition"] for each in leaders] == [0, 1, 2]
    assert all(each["leader"] >= 0 for each in leaders)
    assert len(page["records"]) == 31


def test_a_large_value_is_cut_and_says_how_large_it_is(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(1)
    size = 900_000
    pond.produce(topic, ("\u00fc" * 1000, b"\xff" * size), headers={"trace": b"t" * 1000})
    (shown,) = console.get(f"/api/topics/{topic}/records").body["records"]
    assert shown["value"]["bytes"] == size
    assert len(data(shown["value"])) == len(data(shown["key"])) == PREVIEW.data_bytes
    whole = console.get(f"/api/topics/{topic}/records/0/0").body
    assert data(whole["value"]) == b"\xff" * WHOLE.data_bytes
    assert data(whole["key"]).decode() == "\u00fc" * 1000
    assert (shown["is_cut"], whole["is_cut"]) == (True, True)
    assert console.get(f"/api/topics/{topic}/records/0/1").status == 409


def test_a_search_finds_keys_values_and_headers(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(2)
    pond.produce(topic, *(f"plain {number}" for number in range(3000)))
    pond.produce(topic, ("The-Needle", "x"), ("k", "in the NEEDLE value"), (None, "y"))
    pond.produce(topic, "z", headers={"needle": b"1"})
    steps = list(console.events(f"/api/live/topics/{topic}/search?text=needle", "found"))
    assert len([each for step in steps for each in step["records"]]) == 3
    assert steps[-1]["is_done"]
    assert steps[-1]["scanned"] == steps[-1]["total"] == 3004
    nothing = list(console.events(f"/api/live/topics/{topic}/search?text=haystack", "found"))
    assert not any(step["records"] for step in nothing)
    assert console.get(f"/api/live/topics/{topic}/search").status == 400
    many = list(console.events(f"/api/live/topics/{topic}/search?text=plain", "limit"))
    assert many[0]["hits"] == 200


def test_what_comes_is_shown_live(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(1)
    pond.produce(topic, "before")
    begun = threading.Event()
    seen: list[bytes] = []

    def follow() -> None:
        for event in console.events(f"/api/live/topics/{topic}/tail", "records"):
            begun.set()
            seen.extend(data(each["value"]) for each in event["records"])
            if seen:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    assert begun.wait(20)
    pond.produce(topic, "after")
    reader.join(20)
    assert seen == [b"after"]


def test_half_a_sign_is_refused(console: Console, pond: Pond) -> None:
    """JSON can name it, and no record or name can hold it."""
    path = f"/api/topics/{pond.new_topic(1)}/records"
    for body in ({"key": "\ud800"}, {"value": "\udfff"}, {"headers": {"h\ud800": "x"}}):
        refused = console.change("POST", path, body)
        assert (refused.status, refused.body["error"]) == (400, "The request is not JSON in UTF-8.")
    assert console.change("POST", path, {"key": "\U0001f600"}).status == 201
    assert console.change("DELETE", "/api/groups/x", {"confirm": "\udfff"}).status == 400
    assert console.get("/api/topics/%ED%A0%80/records").status == 409
    assert console.get("/api/topics?filter=%ED%A0%80").status == 200


@pytest.mark.smoke
def test_a_record_is_produced(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(3)
    path = f"/api/topics/{topic}/records"
    body = {"key": "k", "value": json.dumps({"a": 1}), "headers": {"trace": "abc"}, "partition": 2}
    assert console.change("POST", path, body).body == {"partition": 2, "offset": 0}
    (shown,) = console.get(path).body["records"]
    assert (data(shown["key"]), data(shown["value"])) == (b"k", b'{"a": 1}')
    assert [(name, data(value)) for name, value in shown["headers"]] == [("trace", b"abc")]
    keyed = console.change("POST", path, {"key": "k", "value": None}).body
    assert console.change("POST", path, {"key": "k", "value": "00ff", "encoding": "hex"}).body == {
        "partition": keyed["partition"],
        "offset": keyed["offset"] + 1,
    }
    assert console.change("POST", path, {"value": "zz", "encoding": "hex"}).status == 400
    assert console.change("POST", path, {"value": "x", "partition": 3}).status == 409
    assert console.change("POST", "/api/topics/nowhere/records", {"value": "x"}).status == 409


def test_a_list_of_records_is_small_whatever_is_in_their_headers(console: Console, pond: Pond) -> None:
    topic = pond.new_topic(1)
    pond.produce(topic, "x", headers={f"{number}{'n' * 1000}": b"v" * 1000 for number in range(300)})
    listed = console.get(f"/api/topics/{topic}/records")
    assert len(listed.data) < 10_000
    (shown,) = listed.body["records"]
    assert (shown["headers_total"], shown["is_cut"]) == (300, True)
    whole = console.get(f"/api/topics/{topic}/records/0/0").body
    assert (len(whole["headers"]), whole["headers_total"], whole["is_cut"]) == (200, 300, True)


@pytest.mark.parametrize("path", ["/records/0/99999999999999999999", "/records/4294967296/0", "/records/x/0"])
def test_numbers_that_cannot_be_are_refused(console: Console, path: str) -> None:
    assert console.get(f"/api/topics/orders{path}").status in (400, 404)
