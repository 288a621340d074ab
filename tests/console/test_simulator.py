"""The simulator of the console over HTTP: it plays links in processes of its own, and refuses what it cannot."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from millpond.console.simulators import PROCESSES_MAX
from millpond.sim.simulator.actions import CreateTopic, Produce
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import decode, encode, recording_of
from support.console import Answer, Console

SHORT = recording_of((CreateTopic(partitions=1), 300, Produce(count=3, value="tea "), 200))


def look(console: Console, **query: Any) -> Answer:
    return console.get(f"/api/simulator/look?{urlencode({'session': 'test', **query})}")


def test_the_catalogue_has_every_lesson(console: Console) -> None:
    response = console.get("/api/simulator").body
    names = [lesson["name"] for theme in response["themes"] for lesson in theme["lessons"]]
    assert names == list(LESSONS)
    assert all(decode(lesson["link"]) for theme in response["themes"] for lesson in theme["lessons"])


def test_a_link_is_played_and_goes_on_and_back(console: Console) -> None:
    link = encode(SHORT)
    seen = look(console, tape=link).body
    assert seen["now_ms"] == seen["end_ms"] == 500
    assert seen["verdict"]["acknowledged"] == 3
    later = look(console, tape=link, at=900, since=500, line=seen["story_lines"]).body
    assert later["end_ms"] == 900
    assert later["verdict"]["acknowledged"] == 3
    back = look(console, tape=later["link"], at=300).body
    assert (back["now_ms"], back["end_ms"], back["verdict"]["acknowledged"]) == (300, 900, 0)
    again = look(console, tape=link).body
    assert again["story"] == seen["story"]
    assert again["events"] == seen["events"]


def test_an_action_is_added_where_one_is(console: Console) -> None:
    seen = look(console, tape=encode(SHORT), at=300, add=json.dumps(["produce", {"value": "milk"}])).body
    tape = decode(seen["link"])
    assert tape == SHORT.cut(300).then(Produce(value="milk"))
    stepped = look(console, tape=seen["link"], at=300, step=1).body
    assert 300 < stepped["now_ms"] < 330
    assert stepped["flights"]


def test_a_message_is_looked_into(console: Console) -> None:
    link = encode(SHORT)
    flights = look(console, tape=link, since=300).body["flights"]
    number = next(each["number"] for each in flights if each["api"] == "Produce")
    query = urlencode({"tape": link, "at": 500, "number": number, "session": "test"})
    flight = console.get(f"/api/simulator/flight?{query}").body
    assert flight["batches"][0]["records"][0]["value"] == "tea 1"
    refused = console.get(f"/api/simulator/flight?{query.replace(f'number={number}', 'number=999999')}")
    assert refused.status == 400


def test_hostile_questions_are_refused_with_a_sentence(console: Console) -> None:
    for query in (
        {"tape": "nonsense"},
        {"tape": "1.AAAA"},
        {"tape": "1." + "A" * 7_000},
        {"tape": encode(SHORT), "at": 10**9},
        {"tape": encode(SHORT), "at": "now"},
        {"nodes": 50},
        {"tape": encode(SHORT), "add": "{"},
        {"tape": encode(SHORT), "add": '["rm", {"-rf": "/"}]'},
        {"tape": encode(SHORT), "add": '["produce", {"count": 1000000}]'},
        {"tape": "campaign.nonsense.1"},
    ):
        refused = look(console, **query)
        assert refused.status in (400, 414), query
        assert refused.body["error"].endswith((".", "?")), query
    assert look(console, tape=encode(SHORT)).status == 200


def test_more_pages_than_processes_share_them(console: Console) -> None:
    for number in range(PROCESSES_MAX + 2):
        seen = console.get(f"/api/simulator/look?{urlencode({'session': f's{number}', 'tape': encode(SHORT)})}")
        assert seen.body["verdict"]["acknowledged"] == 3
