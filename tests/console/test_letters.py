"""Dead letters over HTTP: what is shown of them, and that a redrive and a purge do just what was agreed to."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest

from millpond.client import dead_letters
from millpond.testing import Pond
from support.console import Answer, Console, until


@pytest.fixture
def topic(pond: Pond) -> str:
    name = pond.new_topic(2)
    for partition in (0, 1):
        pond.produce(name, *(str(number) for number in range(10)), partition=partition)
    return name


def cause(origin: str, error: bytes = b"ValueError") -> dict[str, bytes]:
    return {
        dead_letters.TOPIC: origin.encode(),
        dead_letters.PARTITION: b"1",
        dead_letters.OFFSET: b"5",
        dead_letters.TIMESTAMP: b"0",
        dead_letters.ATTEMPTS: b"3",
        dead_letters.ERROR_TYPE: error,
        dead_letters.ERROR_MESSAGE: b"it broke",
        dead_letters.GROUP: b"billing",
        dead_letters.TIME: b"0",
    }


class Box:
    """The dead letters of one topic, as the console serves them."""

    def __init__(self, console: Console, letters: str) -> None:
        self.console = console
        self.path = f"/api/letters/{letters}"

    def get(self, more: str = "") -> Any:
        return self.console.get(self.path + more).body

    def ask(self, what: str, body: dict[str, Any]) -> Answer:
        return self.console.change("POST", f"{self.path}/{what}", body)

    def ended(self, answer: Answer) -> dict[str, Any]:
        assert answer.status == 202, answer.body
        path = f"/api/jobs/{answer.body['id']}"
        return dict(until(lambda: (now := self.console.get(path).body)["state"] != "running" and now))

    def dry(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the dry run has found, and the name of it."""
        job = self.ended(self.ask(what, body))
        assert (job["state"], job["error"]) == ("done", "")
        return dict(job["result"]) | {"agreed": job["id"]}

    def redrive(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.ended(self.ask("redrive", {"agreed": self.dry("redrive", body)["agreed"]}))


@pytest.fixture
def box(console: Console, pond: Pond, topic: str) -> Box:
    letters = pond.create_topic(f"{topic}.dlq")
    pond.produce(letters, ("a", "1"), ("b", "2"), headers=cause(topic))
    pond.produce(letters, ("c", "3"), headers=cause(topic, b"Timeout"))
    return Box(console, letters)


def test_the_letters_of_one_queue_are_redriven(pond: Pond, topic: str, box: Box) -> None:
    pond.produce(f"{topic}.dlq", "other", headers=cause(topic) | {dead_letters.GROUP: b"mail"})
    assert box.dry("redrive", {"group": "mail", "origin": topic})["records"] == 1
    assert box.dry("redrive", {"group": "billing"})["records"] == 3
    assert box.dry("redrive", {"group": "mail", "origin": "elsewhere"})["records"] == 0
    assert box.ask("redrive", {"all": True, "group": "mail"}).status == 400


def test_letters_are_shown_by_what_they_have_in_common(console: Console, pond: Pond, topic: str, box: Box) -> None:
    until(lambda: f"{topic}.dlq" in [each["topic"] for each in console.get("/api/letters").body["topics"]])
    counts = box.get("/counts")
    assert (counts["records"], counts["waiting"], counts["is_whole"], counts["leaderless"]) == (3, 3, True, [])
    assert counts["errors"] == [["ValueError", 2], ["Timeout", 1]]
    assert sum(sum(errors.values()) for _, errors in counts["over_time"]) == 3
    look = box.get()
    assert look["letters"][0]["cause"]["origin"] == {"topic": topic, "partition": 1, "offset": 5, "timestamp_ms": 0}
    assert (look["is_whole"], look["leaderless"]) == (True, [])
    assert [each["id"] for each in box.get("?error=Timeout")["letters"]] == ["0:2"]
    pond.produce(f"{topic}.dlq", "nobody says why")
    assert [each["id"] for each in box.get("?error=(no%20headers)")["letters"]] == ["0:3"]
    one = box.get("/0/2")
    assert (one["id"], one["value"], one["headers"]) == ("0:2", {"bytes": 1, "data": "Mw=="}, [])
    assert console.get(f"{box.path}/0/4").status == 409
    assert console.get(f"{box.path}/0/{2**70}").status == 400


def test_older_letters_are_shown_page_by_page(pond: Pond, topic: str, box: Box) -> None:
    pond.produce(f"{topic}.dlq", *(str(number) for number in range(4)), headers=cause(topic))
    seen: list[str] = []
    before = ""
    while page := box.get(f"?limit=3&before={before}")["letters"]:
        seen += [each["id"] for each in page]
        before = "{timestamp_ms}:{partition}:{offset}".format(**page[-1])
    assert seen == [f"0:{offset}" for offset in reversed(range(7))]
    for wrong in ("1:2", "a:b:c", "1:2:3:4", "1:2:"):
        assert box.console.get(f"{box.path}?before={wrong}").status == 400


def test_letters_are_redriven_from_the_topic_in_which_they_were_seen(box: Box) -> None:
    seen = box.get("/0/0")["topic_id"]
    assert seen == box.get()["topic_id"]
    assert box.dry("redrive", {"ids": ["0:0"], "topic_id": seen})["records"] == 1
    other = box.ended(box.ask("redrive", {"ids": ["0:0"], "topic_id": seen[::-1].replace("-", "")}))
    assert (other["state"], "recreated" in other["error"]) == ("failed", True)
    assert box.ask("redrive", {"ids": ["0:0"], "topic_id": "x"}).status == 400


def test_letters_are_redriven_once_and_purged(console: Console, topic: str, box: Box) -> None:
    plan = box.dry("redrive", {"error": "ValueError"})
    assert (plan["records"], plan["targets"]) == (2, {topic: 2})
    assert box.get("/counts")["waiting"] == 3

    edit = {"id": "0:0", "value": "00ff", "value_encoding": "hex", "headers": {"mended": "yes"}}
    job = box.redrive({"ids": ["0:0"], "edits": [edit]})
    assert (job["what"], job["total"], job["done"], job["state"]) == (f"Redrive of {topic}.dlq", 1, 1, "done")
    sent = console.get(f"/api/topics/{topic}/records?partition=1").body["records"][-1]
    assert (b64decode(sent["key"]["data"]), sent["value"]) == (b"a", {"bytes": 2, "data": "AP8="})
    assert [name for name, _ in sent["headers"]] == ["mended", dead_letters.REDRIVEN, dead_letters.REDRIVEN_FOR]
    assert box.ask("redrive", {"ids": ["0:1"], "edits": [{"id": "0:1", "value": 5}]}).status == 400
    assert box.redrive({"all": True})["done"] == 2
    assert box.dry("redrive", {"all": True})["records"] == 0
    until(lambda: box.get("/counts")["waiting"] == 0)
    # Three records and the markers of two transactions.
    assert console.first_event(f"/api/live/topics/{topic}")["partitions"][1]["end"] >= 13

    for wrong in ({}, {"all": True, "error": "x"}, {"ids": ["x"]}, {"ids": ["0:0"], "all": True}):
        assert box.ask("redrive", wrong).status == 400
    other = Box(console, topic)
    assert "is not a dead-letter topic" in other.ended(other.ask("redrive", {"all": True}))["error"]

    count = box.dry("purge", {"mode": "redriven"})
    assert (count["records"], count["waiting"], count["leaderless"]) == (3, 0, [])
    assert box.ask("purge", {"agreed": "something else"}).status == 409
    assert box.ask("purge", {"agreed": plan["agreed"]}).status == 409, "that was a redrive"
    assert other.ask("purge", {"agreed": count["agreed"]}).status == 400
    assert box.ask("purge", {"agreed": count["agreed"]}).body["records"] == 3
    assert box.get("/counts")["records"] == 0


def test_what_came_after_the_count_is_not_deleted_however_many_there_are(pond: Pond, topic: str, box: Box) -> None:
    count = box.dry("purge", {"mode": "all"})
    # Three others instead of the three that were seen: the same number, and not the same letters.
    assert box.ask("purge", {"agreed": box.dry("purge", {"mode": "all"})["agreed"]}).status == 200
    pond.produce(f"{topic}.dlq", "4", "5", "6", headers=cause(topic))
    assert box.ask("purge", {"agreed": count["agreed"]}).status == 200
    assert [each["id"] for each in box.get()["letters"]] == ["0:5", "0:4", "0:3"]


def test_what_came_after_the_dry_run_is_not_redriven(pond: Pond, topic: str, box: Box) -> None:
    plan = box.dry("redrive", {"all": True})
    pond.produce(f"{topic}.dlq", "4", headers=cause(topic))
    assert box.ended(box.ask("redrive", {"agreed": plan["agreed"]}))["done"] == 3
    states = {each["id"]: each["is_redriven"] for each in box.get()["letters"]}
    assert states == {"0:3": False, "0:2": True, "0:1": True, "0:0": True}
    again = box.ended(box.ask("redrive", {"agreed": plan["agreed"]}))
    assert (again["state"], "redriven in the meantime" in again["error"], again["done"]) == ("failed", True, 0)


def test_a_redrive_under_way_is_seen_and_another_does_not_take_over(
    console: Console, pond: Pond, topic: str, box: Box
) -> None:
    pond.produce(f"{topic}.dlq", *("more" for _ in range(20)), headers=cause(topic))
    slow = box.dry("redrive", {"all": True, "rate": 1})
    begun = box.ask("redrive", {"agreed": slow["agreed"]})
    (running,) = [each for each in console.get("/api/jobs?kind=letters").body if each["id"] == begun.body["id"]]
    assert running["what"] == f"Redrive of {topic}.dlq"
    second = box.ask("redrive", {"agreed": box.dry("redrive", {"ids": ["0:2"]})["agreed"]})
    assert second.status == 409
    assert "already" in second.body["error"]
    console.change("POST", f"/api/jobs/{running['id']}/stop", {})
    first = box.ended(begun)
    assert (first["state"], first["done"] < 23, first["error"]) == ("stopped", True, "")


def test_a_list_of_letters_is_small_whatever_is_in_them(pond: Pond, topic: str, box: Box) -> None:
    large = cause(topic, b"E" * 100_000) | {dead_letters.ERROR_MESSAGE: b"m" * 100_000, "n" * 100_000: b"v" * 100_000}
    pond.produce(f"{topic}.dlq", ("k" * 100_000, "v" * 100_000), headers=large)
    listed = box.console.get(box.path)
    assert len(listed.data) < 10_000
    assert listed.body["letters"][0]["key"]["bytes"] == 100_000
    whole = box.get("/0/3")
    assert len(whole["headers"][0][0]) <= 200
    assert whole["headers"][0][1]["bytes"] == 100_000
    assert len(whole["cause"]["error_message"]) == 1 << 16
    assert len(box.console.get(f"{box.path}/counts").data) < 10_000
