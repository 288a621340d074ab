"""`millpond queue`, as a user runs it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.cli.test_completion import complete

from support.node import eventually


@pytest.fixture
def group(millpond: Any, topic: str) -> str:
    """A group that begins at the start."""
    name = f"{topic[:100]}-g"
    millpond.succeeds("config", "set", "group", name, "share.auto.offset.reset=earliest")
    return name


def table(lines: list[str], first: str) -> list[list[str]]:
    """The rows below the line that begins with this word, up to an empty line."""
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == [first])
    rows = []
    for line in lines[at + 1 :]:
        if not line.strip():
            break
        rows.append(line.split())
    return rows


def test_jobs_are_sent_received_and_accepted(millpond: Any, topic: str, group: str) -> None:
    sent = millpond.succeeds("queue", "send", topic, "tea", "milk", "--key", "k", "-H", "from=test")
    assert "2 records" in sent.err
    got = millpond.succeeds("queue", "receive", topic, "--group", group, "--count", "2", "--wait", "30s")
    first, second = got.objects
    assert [first["value"], second["value"]] == ["tea", "milk"]
    assert (first["key"], first["headers"], first["deliveries"], first["offset"]) == ("k", {"from": "test"}, 1, 0)
    # Accepted: the next one gets nothing.
    again = millpond.succeeds("queue", "receive", topic, "--wait", "1s")
    assert again.out == ""
    assert "No record came within 1.0s." in again.err


def test_a_released_job_comes_back_and_a_rejected_one_does_not(millpond: Any, topic: str, group: str) -> None:
    millpond.succeeds("queue", "send", topic, stdin_data="one\n")
    words = ("queue", "receive", topic, "-g", group, "--wait", "30s")
    counts = [millpond.succeeds(*words, verdict).objects[0]["deliveries"] for verdict in ("--release", "--release")]
    assert counts == [1, 2]
    assert millpond.succeeds(*words, "--reject").objects[0]["deliveries"] == 3
    assert millpond.succeeds("queue", "receive", topic, "-g", group, "--wait", "1s").out == ""


def test_no_more_is_taken_than_asked_for(millpond: Any, topic: str, group: str) -> None:
    millpond.succeeds("queue", "send", topic, "a", "b", "c")
    counts = [
        (job["value"], job["deliveries"])
        for count in ("1", "2")
        for job in millpond.succeeds("queue", "receive", topic, "-g", group, "-n", count, "--wait", "30s").objects
    ]
    assert counts == [("a", 1), ("b", 1), ("c", 1)]


def test_delay_time_and_priority_are_headers(millpond: Any, quick: Any, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    millpond.succeeds("queue", "send", topic, "a", "--delay", "5m", "--priority", "9")
    millpond.succeeds("queue", "send", topic, "b", "--at", "2030-01-31T08:30Z")
    own = {"value": "c", "headers": {"queue.priority": "1"}}
    lines = f"{json.dumps(own)}\n{json.dumps({'value': 'd', 'deliveries': 2, 'state': 'out'})}\n"
    millpond.succeeds("queue", "send", topic, "--json-lines", "--priority", "5", stdin_data=lines)
    records = millpond.succeeds("consume", topic, "--until-end", "--json-lines").objects
    first, second, third, fourth = [each["headers"] for each in records]
    assert first["queue.priority"] == "9"
    assert now_ms + 300_000 <= int(first["queue.deliver-at"]) <= time.time_ns() // 1_000_000 + 300_000
    assert second == {"queue.deliver-at": "1896078600000"}
    assert (third, fourth) == ({"queue.priority": "1"}, {"queue.priority": "5"})


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--delay", "5m", "--at", "2030-01-01"), "--delay and --at both say when to deliver"),
        (("--delay", "soon"), "--delay soon: 'soon' is not a duration; write it like 30s or 5m"),
        (("--delay", "99999d"), "delay is between 0 seconds and a hundred years"),
        (("--at", "5m"), "--at 5m: give a time as 2026-01-31T08:30; --delay takes a span"),
        (("--priority", "10"), "10 is not in the range 0<=x<=9"),
        (("--json-lines",), "--json-lines is for standard input: leave out the values"),
    ],
)
def test_what_cannot_be_sent_is_said(millpond: Any, topic: str, words: tuple[str, ...], error: str) -> None:
    millpond.fails("queue", "send", topic, "x", *words, error=error, code=2)


def test_a_queue_is_listed_described_and_peeked_while_a_member_holds_records(
    millpond: Any, topic: str, group: str, hold: Any
) -> None:
    millpond.succeeds("queue", "send", topic, "a", "b")
    hold(group, topic)
    millpond.succeeds("queue", "send", topic, "c", "--delay", "1h")
    (listed,) = json.loads(millpond.succeeds("queue", "list", "--group", group, "--json").out)
    assert (listed["topic"], listed["group"], listed["out"], listed["unfinished"]) == (topic, group, 2, 3)
    assert (listed["state"], len(listed["members"]), listed["dead"]) == ("stable", 1, None)
    (row,) = table(millpond.succeeds("queue", "list", "-g", group).lines, "Topic")
    assert row[:4] == [topic, group, "stable", "1"]
    described = millpond.succeeds("queue", "describe", topic, "--sample", "0.2").lines
    assert described[0].startswith(f"{topic} of group {group}: stable, 1 member, 1 waiting, 2 out, oldest ")
    (row,) = table(described, "Partition")
    assert row[:5] == ["0", "0", "3", "1", "2"]
    (holder,) = table(described, "Member")
    assert holder[1:4] == ["holder", "127.0.0.1", "2"]
    settings = {each[0]: each[1] for each in table(described, "Setting")}
    assert settings["share.auto.offset.reset"] == "earliest"
    facts = json.loads(millpond.succeeds("queue", "describe", topic, "--json", "--sample", "0").out)
    assert facts["holders"][0]["records"] == 2
    assert facts["settings"]["share.delivery.count.limit"] == "5"
    assert facts["totals"]["delivered"] == 2
    peeked = millpond.succeeds("queue", "peek", topic).lines
    assert [line.split()[:2] for line in peeked[1:]] == [["out", "a"], ["out", "b"], ["delayed", "c"]]
    objects = millpond.succeeds("queue", "peek", topic, "-n", "2", "-j").objects
    assert [(each["value"], each["state"], each["deliveries"]) for each in objects] == [
        ("a", "out", 1),
        ("b", "out", 1),
    ]
    millpond.fails("queue", "purge", topic, "--yes", error="has 1 active member (holder on 127.0.0.1): stop it first")


def test_topics_and_share_groups_are_completed(millpond: Any, topic: str, group: str, hold: Any) -> None:
    millpond.succeeds("queue", "send", topic, "a")
    hold(group, topic)
    for words, offered in (
        (("queue", "rec"), ["receive"]),
        (("queue", "describe", topic[:-1]), [topic]),
        (("queue", "describe", topic, "--group", group[:-1]), [group]),
    ):
        # Once more where the machine was too busy for an answer in time: then nothing is offered.
        assert eventually(lambda words=words, offered=offered: complete(millpond, *words) == offered), words


def test_a_watch_prints_an_object_for_each_look(millpond: Any, topic: str, group: str, hold: Any) -> None:
    millpond.succeeds("queue", "send", topic, "a")
    hold(group, topic)
    process = millpond.start("queue", "describe", topic, "--watch", "0.5", "--json", "--sample", "0")
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.terminate()
    process.communicate()
    assert [each["out"] for each in looks] == [1, 1]
    assert looks[1]["rates"]["written"] == 0


def test_a_purge_asks_and_skips_what_is_there(millpond: Any, topic: str, group: str) -> None:
    millpond.succeeds("queue", "send", topic, "a", "b")
    millpond.succeeds("queue", "receive", topic, "-g", group, "--wait", "30s")
    millpond.fails("queue", "purge", topic, error="There is no terminal to ask on: add --yes", code=2)
    shown = millpond.succeeds("queue", "purge", topic, "--yes").out
    assert shown == f"Purged {topic} of group {group}: 1 record will not be delivered.\n"
    assert "Nothing is unfinished." in millpond.succeeds("queue", "peek", topic).err
    assert json.loads(millpond.succeeds("queue", "purge", topic, "--yes", "--json").out)["records"] == 0


def test_dead_letters_of_the_queue_are_redriven(millpond: Any, quick: Any, topic: str, group: str) -> None:
    letters = quick.create(f"{topic[:150]}.dlq")
    headers = {"dlq.topic": topic, "dlq.partition": "0", "dlq.offset": "0", "dlq.error.type": "ValueError"}
    for name, value in ((group, "mine"), ("another", "theirs")):
        quick.send(letters, value, headers=list((headers | {"dlq.group": name}).items()))
    millpond.succeeds("queue", "receive", topic, "-g", group, "--wait", "1s")
    millpond.fails("queue", "redrive", topic, error=f"Group {group} keeps no dead letters: name a topic for them")
    dry = millpond.succeeds("queue", "redrive", topic, "--from", letters, "--dry-run").out
    assert f"{letters} → {topic}: 1 record" in dry
    assert "Redrove 1 record." in millpond.succeeds("queue", "redrive", topic, "--from", letters).out
    (job,) = millpond.succeeds("queue", "receive", topic, "--wait", "30s").objects
    assert job["value"] == "mine"


def test_a_queue_that_is_not_there_is_said(millpond: Any, topic: str) -> None:
    millpond.fails("queue", "describe", topic, error=f"No share group reads {topic} yet: name one with --group.")
    millpond.fails("queue", "peek", "nowhere", error="There is no topic nowhere")
    millpond.fails("queue", "receive", topic, error="name one with --group")
    millpond.fails("queue", "list", "--group", "nobody", error="There is no share group nobody")
    millpond.fails("queue", "receive", topic, "--wait", "0s", error="'0s' is too short to join the group.", code=2)
    millpond.fails("queue", "send", "nowhere", "x", error="millpond topic create nowhere")
