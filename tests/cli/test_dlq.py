"""Dead letters from the command line: looking at them, and redriving them through kills without a double."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from millpond.cli import main
from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message, header_list
from support.node import eventually

TEN_MINUTES_MS = 600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Box:
    """A topic with its dead letters, and what a test wants to know of them."""

    def __init__(self, quick: Any, name: str, partitions: int = 2) -> None:
        self.quick = quick
        self.source = quick.create(name, partitions)
        self.dlq = quick.create(f"{name}.dlq", 1)
        self._sent = 0

    def put(
        self,
        value: str,
        error: Exception | None = None,
        *,
        key: str = "k",
        partition: int = 1,
        timestamp_ms: int = 0,
        **headers: str,
    ) -> None:
        """A letter as a worker writes it."""
        own = tuple((name.replace("_", "."), text.encode()) for name, text in headers.items())
        message = Message(self.source, partition, self._sent, now_ms(), key.encode(), value.encode(), own)
        self._sent += 1
        sent = dead_letter(
            message,
            error or ValueError("bad"),
            to=self.dlq,
            origin=origin_of(message),
            attempts=5,
            group="billing",
            now_ms=now_ms(),
        )
        self.quick.producer.produce(
            self.dlq, sent.value, sent.key, headers=header_list(sent.headers), timestamp=timestamp_ms
        )

    def flush(self) -> Box:
        assert self.quick.producer.flush(60) == 0
        return self

    def arrived(self, topic: str | None = None) -> list[Any]:
        """What a careful reader sees in the original topic, partition by partition."""
        return list(self._read(topic or self.source))

    def values(self, topic: str | None = None) -> list[str]:
        return [message.value().decode() for message in self.arrived(topic)]

    def written(self) -> int:
        """How far the original topic goes, committed or not."""
        return sum(self._ends(self.source))

    def _ends(self, topic: str) -> list[int]:
        consumer = self._consumer()
        try:
            partitions = consumer.list_topics(timeout=10).topics[topic].partitions
            return [consumer.get_watermark_offsets(TopicPartition(topic, each), 10)[1] for each in partitions]
        finally:
            consumer.close()

    def _read(self, topic: str) -> Iterator[Any]:
        consumer = self._consumer()
        try:
            partitions = consumer.list_topics(timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
            left = len(partitions)
            while left:
                message = consumer.poll(10)
                assert message is not None
                error = message.error()
                if error is None:
                    yield message
                else:
                    assert error.name() == "_PARTITION_EOF"
                    left -= 1
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        servers = self.quick.bootstrap
        result = {
            "bootstrap.servers": servers,
            "group.id": "look",
            "fetch.wait.max.ms": 50,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        return Consumer(result | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})


@pytest.fixture
def box(quick: Any, request: pytest.FixtureRequest) -> Box:
    return Box(quick, "".join(sign if sign.isalnum() else "-" for sign in request.node.name)[:150])


@dataclass
class Finished:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def run(node: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """A command in this process, where a second's half for each new one would add up."""
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", node.address)

    def call(*arguments: str) -> Finished:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return call


class Timeout(Exception):
    """An error with a module before its name."""


# Looking.


def test_list_finds_dead_letters_by_name_and_by_what_is_in_a_topic(
    run: Callable[..., Finished], quick: Any, box: Box
) -> None:
    box.put("a", timestamp_ms=now_ms() - TEN_MINUTES_MS)
    box.put("b")
    box.flush()
    other = Box(quick, "graveyard-source")
    other.dlq = quick.create("graveyard")
    other.put("c")
    other.flush()
    plain = quick.create("plain-topic")
    quick.send(plain, "x")

    result = {each["topic"]: each for each in json.loads(run("dlq", "list", "--json").out)}
    assert plain not in result
    assert box.source not in result
    assert result["graveyard"]["records"] == 1
    facts = result[box.dlq]
    assert (facts["records"], facts["waiting"], facts["is_estimate"]) == (2, 2, False)
    assert facts["newest_ms"] - facts["oldest_ms"] >= TEN_MINUTES_MS

    assert run("dlq", "redrive", box.dlq, "--offset", "0:0").code == 0
    shown = run("dlq", "list")
    assert shown.lines[0].split() == ["Topic", "Partitions", "Letters", "Waiting", "Oldest", "Newest"]
    (row,) = [line.split() for line in shown.lines if line.startswith(box.dlq)]
    assert row[:6] == [box.dlq, "1", "2", "1", "10m", row[5]]
    assert f"{box.dlq}.redriven" not in shown.out


def test_show_tells_where_a_letter_came_from_and_what_failed(run: Callable[..., Finished], box: Box) -> None:
    try:
        raise Timeout("the bank does not answer")
    except Timeout as error:
        box.put('{"amount": 7}', error, key="customer-42", trace_id="abc")
    box.put("\x1b[31mred", ValueError("x" * 400))
    box.flush()
    one = run("dlq", "show", box.dlq, "--partition", "0", "--offset", "0")
    text = one.out
    assert text.startswith("0:0  20")
    assert "waiting" in one.lines[0]
    for result in (
        f"from      {box.source}[1]@0, read by billing",
        "Timeout: the bank does not answer",
        "attempts  5",
        "key       customer-42",
        "headers   trace.id=abc",
        'value     {"amount": 7}',
        'raise Timeout("the bank does not answer")',
    ):
        assert result in text, text
    both = run("dlq", "show", box.dlq)
    assert "Traceback" not in both.out
    assert "\x1b" not in both.out
    assert "--full shows all" in both.out
    assert [line.split()[0] for line in both.lines if line.endswith("waiting")] == ["0:0", "0:1"]
    assert [each["offset"] for each in run("dlq", "show", box.dlq, "--limit", "1", "--json-lines").objects] == [1]
    (letter,) = run("dlq", "show", box.dlq, "--error", "Timeout", "--json-lines").objects
    assert letter["origin"]["topic"] == box.source
    assert letter["headers"] == {"trace.id": "abc"}
    assert letter["error"]["type"].endswith("Timeout")
    none = run("dlq", "show", box.dlq, "--error", "KeyError")
    assert (none.out, none.err) == ("", "No letter matches.\n")
    assert run("dlq", "show", box.dlq, "--offset", "1").code == 2
    assert "There is no topic" in run("dlq", "show", "no-such.dlq").err


def test_stats_count_by_error_topic_and_time(run: Callable[..., Finished], quick: Any, box: Box) -> None:
    began = now_ms() - 3 * TEN_MINUTES_MS
    for number in range(6):
        box.put(
            str(number), Timeout("slow") if number % 3 else None, timestamp_ms=began + number * TEN_MINUTES_MS // 2
        )
    box.flush()
    quick.send(box.dlq, "no headers")
    result = json.loads(run("dlq", "stats", box.dlq, "--json").out)
    assert (result["records"], result["waiting"]) == (7, 7)
    assert sorted(result["errors"].values()) == [1, 2, 4]
    assert result["errors"]["ValueError"] == 2
    assert result["origins"] == {box.source: 6, "(no headers)": 1}
    assert sum(span["records"] for span in result["over_time"]) == 7
    assert len(result["over_time"]) > 2
    shown = run("dlq", "stats", box.dlq)
    assert shown.lines[0] == f"{box.dlq}: 7 dead letters, 7 not redriven"
    bars = {
        line.split()[0]: line.split()[-1] for line in shown.lines if line.startswith("  ") and len(line.split()) > 2
    }
    assert len(bars["ValueError"]) == 20
    recent = json.loads(run("dlq", "stats", box.dlq, "--since", "1m", "--json").out)
    assert recent["records"] == 1


# What is not a dead-letter topic.

EVERY_COMMAND = (
    ("show",),
    ("stats",),
    ("redrive", "--all"),
    ("redrive", "--all", "--dry-run"),
    ("purge", "--all", "--yes"),
    ("purge", "--before", "0s", "--yes"),
    ("purge", "--redriven", "--yes"),
)


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_an_ordinary_topic_is_refused_and_stays_as_it_is(
    run: Callable[..., Finished], quick: Any, topic: str, words: tuple[str, ...]
) -> None:
    quick.send(topic, *"abcde")
    done = run("dlq", words[0], topic, *words[1:])
    assert (done.code, done.out) == (1, "")
    assert f"{topic} is not a dead-letter topic: its record 0:0 has no header dlq.topic." in done.err
    assert "millpond dlq list" in done.err
    assert len(run("consume", topic, "--until-end").lines) == 5
    assert f"{topic}.redriven" not in quick.admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_an_ordinary_record_among_letters_refuses_the_topic(
    run: Callable[..., Finished], quick: Any, box: Box, words: tuple[str, ...]
) -> None:
    """Its ends look like dead letters, and yet one record in its middle is somebody's own."""
    box.dlq = quick.create(f"{box.source}-graveyard")
    for number in range(5):
        if number == 2:
            box.flush()
            quick.send(box.dlq, "precious")
        box.put(str(number))
    box.flush()
    done = run("dlq", words[0], box.dlq, *words[1:])
    assert done.code == 1
    assert "its record 0:2 has no header dlq.topic" in done.err
    assert len(run("consume", box.dlq, "--until-end").lines) == 6


def test_a_topic_with_another_name_is_known_by_its_letters_and_by_its_marks(
    run: Callable[..., Finished], quick: Any, box: Box
) -> None:
    box.dlq = quick.create(f"{box.source}-graveyard")
    empty = run("dlq", "show", box.dlq)
    assert empty.code == 1
    assert f"{box.dlq} is not a dead-letter topic: it is empty, and its name does not end in .dlq." in empty.err
    box.put("a")
    box.flush()
    assert run("dlq", "redrive", box.dlq, "--all").lines[-1] == "Redrove 1 record."
    assert run("dlq", "purge", box.dlq, "--redriven", "--yes").out == f"Deleted 1 letter of {box.dlq}.\n"
    # It is empty again, but a redrive has left its marks beside it.
    assert run("dlq", "show", box.dlq).err == f"{box.dlq} is empty.\n"
    refused = run("dlq", "purge", f"{box.dlq}.redriven", "--all", "--yes")
    assert (refused.code, "is not a dead-letter topic" in refused.err) == (1, True)
    internal = run("dlq", "purge", "__consumer_offsets", "--all", "--yes")
    assert internal.code == 1


# Redriving.


@pytest.mark.smoke
def test_redriven_records_are_as_they_were_and_in_their_partition(run: Callable[..., Finished], box: Box) -> None:
    for number in range(4):
        box.put(str(number), key="k", partition=number % 2, trace="t")
    box.flush()
    done = run("dlq", "redrive", box.dlq, "--all")
    assert done.code == 0, done.err
    assert done.lines == [
        f"{box.dlq} → {box.source}: 4 records",
        "4 records for the group billing, which failed.",
        "Redrove 4 records.",
    ]
    arrived = box.arrived()
    assert {(message.partition(), message.value()) for message in arrived} == {
        (0, b"0"),
        (1, b"1"),
        (0, b"2"),
        (1, b"3"),
    }
    headers = (("trace", b"t"), ("dlq.redriven", b"1"), ("dlq.redriven.for", b"billing"))
    assert {tuple(message.headers()) for message in arrived} == {headers}
    again = run("dlq", "redrive", box.dlq, "--all")
    assert again.lines == ["4 were redriven before and will not be sent again.", "Redrove 0 records."]
    assert len(box.arrived()) == 4
    states = [each["is_redriven"] for each in run("dlq", "show", box.dlq, "--json-lines").objects]
    assert states == [True] * 4


def test_a_dry_run_changes_nothing(run: Callable[..., Finished], quick: Any, box: Box) -> None:
    box.put("a")
    box.put("b", Timeout())
    box.flush()
    result = run("dlq", "redrive", box.dlq, "--error", "Timeout", "--dry-run")
    assert result.lines == [
        f"{box.dlq} → {box.source}: 1 record",
        "1 record for the group billing, which failed.",
        "Nothing was changed: this was a dry run.",
    ]
    result = run("dlq", "redrive", box.dlq, "--all", "--every-group", "--dry-run")
    assert "2 records for every group that reads there." in result.lines
    assert box.written() == 0
    assert f"{box.dlq}.redriven" not in quick.admin.list_topics(timeout=10).topics


def test_filters_send_what_they_name_and_leave_the_rest_waiting(
    run: Callable[..., Finished], quick: Any, box: Box
) -> None:
    old = now_ms() - TEN_MINUTES_MS
    box.put("old", timestamp_ms=old)
    box.put("timeout", Timeout(), timestamp_ms=old + 1)
    for number in range(4):
        box.put(f"n{number}", key=f"key-{number}")
    box.flush()

    def redrive(*options: str) -> list[str]:
        before = box.values()
        done = run("dlq", "redrive", box.dlq, *options)
        assert done.code == 0, done.err
        return sorted((Counter(box.values()) - Counter(before)).elements())

    assert redrive("--error", "Timeout") == ["timeout"]
    assert redrive("--key", "key-1", "--key", "key-2") == ["n1", "n2"]
    assert redrive("--key", "key-1") == []
    assert redrive("--offset", "0:4-5") == ["n3"]
    assert redrive("--until", "5m") == ["old"]
    assert redrive("--since", "5m", "--error", "ValueError") == ["n0"]
    assert sorted(box.values()) == ["n0", "n1", "n2", "n3", "old", "timeout"]
    missing = run("dlq", "redrive", box.dlq, "--offset", "0:99")
    assert "There is no letter 0:99." in missing.lines
    assert run("dlq", "redrive", box.dlq).code == 2
    assert run("dlq", "redrive", box.dlq, "--all", "--key", "a").code == 2
    assert run("dlq", "redrive", box.dlq, "--offset", "1").code == 2


def test_a_record_that_comes_back_too_often_stays(run: Callable[..., Finished], box: Box) -> None:
    box.put("fresh")
    box.put("often", dlq_redriven="3")
    box.flush()
    result = run("dlq", "redrive", box.dlq, "--all")
    assert "1 are skipped, because they came back after 3 redrives: 0:1; send them anyway" in result.out
    assert box.values() == ["fresh"]
    assert run("dlq", "redrive", box.dlq, "--all", "--max-redrives", "4").code == 0
    assert sorted(box.values()) == ["fresh", "often"]
    assert ("dlq.redriven", b"4") in box.arrived()[-1].headers()


def test_letters_without_an_origin_need_a_target(run: Callable[..., Finished], quick: Any, box: Box) -> None:
    quick.send(box.dlq, "stray", key="k")
    result = run("dlq", "redrive", box.dlq, "--all")
    stays = "1 are skipped, because their original topic is unknown or does not exist: give --to TOPIC."
    assert stays in result.lines
    target = quick.create(f"{box.source}-other")
    assert run("dlq", "redrive", box.dlq, "--all", "--to", target).code == 0
    assert box.values(target) == ["stray"]
    unknown = run("dlq", "redrive", box.dlq, "--all", "--to", "nowhere-at-all")
    assert unknown.code == 0, "nothing is left to be sent there"
    assert "cannot be redriven into" in _put_and_redrive(run, box, "--to", box.dlq)
    assert "There is no topic nowhere-at-all" in _put_and_redrive(run, box, "--to", "nowhere-at-all")


def _put_and_redrive(run: Callable[..., Finished], box: Box, *options: str) -> str:
    box.put("x")
    box.flush()
    done = run("dlq", "redrive", box.dlq, "--all", *options)
    assert done.code == 1
    return done.err


def test_killed_at_any_moment_it_goes_on_without_a_double(
    millpond: Any, run: Callable[..., Finished], box: Box
) -> None:
    count, chance = 1500, random.Random(7)
    for number in range(count):
        box.put(str(number), partition=number % 2, key=str(number))
    box.flush()
    kills = 0
    while kills < 5:
        before = box.written()
        # Not as fast as it can: a busy machine may keep this process from the kill for a while.
        process = millpond.start("dlq", "redrive", box.dlq, "--all", "--batch", "3", "--rate", "250/s")
        goal = before + chance.randrange(20, 200)
        assert eventually(lambda goal=goal, process=process: box.written() >= goal or process.poll() is not None)
        time.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
        kills += 1
    done = run("dlq", "redrive", box.dlq, "--all")
    assert done.code == 0, done.err
    letter = Counter(box.values())
    assert len(letter) == count
    assert set(letter.values()) == {1}
    arrived = [(message.partition(), int(message.value())) for message in box.arrived()]
    for partition in (0, 1):
        numbers = [number for at, number in arrived if at == partition]
        assert numbers == sorted(numbers), "the order of a partition is kept"


def test_a_rate_is_kept_and_an_interrupt_stops_between_two_batches(
    millpond: Any, run: Callable[..., Finished], box: Box
) -> None:
    count = 300
    for number in range(count):
        box.put(str(number))
    box.flush()
    began = time.monotonic()
    process = millpond.start("dlq", "redrive", box.dlq, "--all", "--rate", "10/s")
    assert eventually(lambda: box.written() >= 30)
    process.send_signal(signal.SIGINT)
    out = process.communicate()[0].decode()
    assert process.returncode == 130
    seconds = time.monotonic() - began
    sent = len(box.values())
    assert 20 <= sent < count
    assert sent <= 10 * (seconds + 1), "10 a second"
    assert f"Stopped after {sent} of {count} records: run the same command to continue." in out
    assert run("dlq", "redrive", box.dlq, "--all").code == 0
    assert sorted(map(int, box.values())) == list(range(count))


def test_a_second_redrive_takes_over_from_the_first(millpond: Any, run: Callable[..., Finished], box: Box) -> None:
    # The first would take a minute: the second comes in time, however slowly it starts.
    count = 600
    for number in range(count):
        box.put(str(number))
    box.flush()
    first = millpond.start("dlq", "redrive", box.dlq, "--all", "--rate", "10/s")
    assert eventually(lambda: box.written() >= 10)
    assert run("dlq", "redrive", box.dlq, "--all").code == 0
    result = first.communicate(timeout=60)[1].decode()
    assert first.returncode == 1
    assert "Another redrive of" in result
    assert sorted(map(int, box.values())) == list(range(count))


def test_a_recreated_dead_letter_topic_has_nothing_redriven(
    run: Callable[..., Finished], quick: Any, box: Box
) -> None:
    box.put("first life")
    box.flush()
    assert run("dlq", "redrive", box.dlq, "--all").code == 0
    assert run("topic", "delete", box.dlq, "--yes").code == 0
    quick.create(box.dlq)
    box.put("second life")
    box.flush()
    assert run("dlq", "redrive", box.dlq, "--all").lines[-1] == "Redrove 1 record."
    assert sorted(box.values()) == ["first life", "second life"]


def test_a_terminal_shows_how_far_it_is(in_terminal: Callable[..., Any], box: Box) -> None:
    for number in range(20):
        box.put(str(number))
    box.flush()
    terminal = in_terminal("dlq", "redrive", box.dlq, "--all")
    terminal.read_until("Redrove 20 records.")
    assert "20/20" in terminal.text
    assert terminal.finish() == 0


# Purging.


def test_purge_cuts_from_the_beginning(run: Callable[..., Finished], box: Box) -> None:
    old = now_ms() - TEN_MINUTES_MS
    for number in range(6):
        box.put(str(number), timestamp_ms=old + number if number < 2 else 0)
    box.flush()

    def offsets() -> list[int]:
        return [each["offset"] for each in run("dlq", "show", box.dlq, "--json-lines").objects]

    assert run("dlq", "purge", box.dlq).code == 2
    assert "There is no terminal to ask on" in run("dlq", "purge", box.dlq, "--all").err
    assert offsets() == [0, 1, 2, 3, 4, 5]
    assert run("dlq", "purge", box.dlq, "--before", "5m", "--yes").out == f"Deleted 2 letters of {box.dlq}.\n"
    assert offsets() == [2, 3, 4, 5]
    assert run("dlq", "purge", box.dlq, "--redriven", "--yes").out == "Nothing to delete.\n"
    assert run("dlq", "redrive", box.dlq, "--offset", "0:2", "--offset", "0:4").code == 0
    assert run("dlq", "purge", box.dlq, "--redriven", "--yes").out == f"Deleted 1 letter of {box.dlq}.\n"
    assert offsets() == [3, 4, 5]
    assert run("dlq", "purge", box.dlq, "--all", "--yes").code == 0
    assert offsets() == []
    assert run("dlq", "show", box.dlq).err == f"{box.dlq} is empty.\n"


def test_purge_asks_and_says_what_would_be_lost(in_terminal: Callable[..., Any], box: Box) -> None:
    box.put("a")
    box.flush()
    terminal = in_terminal("dlq", "purge", box.dlq, "--all")
    terminal.read_until("of which 1 have not been redriven? [y/N]")
    terminal.type("n\n")
    assert terminal.finish() == 130
