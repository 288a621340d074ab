"""Reading from any place, to any end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.foreign_headers import batch_with_raw_headers
from support.raw import Raw


@pytest.fixture(scope="module")
def numbers(quick: Any) -> str:
    """A topic with the numbers 0 to 99, a minute apart, the last one a minute ago."""
    now_ms = int(time.time() * 1000)
    quick.create("numbers")
    for n in range(100):
        quick.producer.produce("numbers", str(n), timestamp=now_ms - (100 - n) * 60_000)
    quick.producer.flush(60)
    return "numbers"


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("beginning", 0),
        ("37", 37),
        ("-10", 90),
        ("-1000", 0),
        ("10m30s ago", 90),
        ("2h", 0),
        ("2020-01-01", 0),
    ],
)
def test_reading_begins_at_the_given_point(millpond: Any, numbers: str, place: str, first: int) -> None:
    read = millpond.succeeds("consume", numbers, "--from", place, "--until-end")
    assert read.lines == [str(n) for n in range(first, 100)]


def test_an_iso_time_is_a_place(millpond: Any, numbers: str) -> None:
    (fiftieth,) = millpond("consume", numbers, "--from", "50", "-n", "1", "-t").lines
    place, moment, value = fiftieth.split("\t")
    assert (place, value) == ("0:50", "50")
    assert millpond("consume", numbers, "--from", moment, "-n", "2").out == "50\n51\n"


def test_nothing_from_the_end_until_the_end(millpond: Any, numbers: str) -> None:
    for place in ("end", "100", "1s"):
        read = millpond("consume", numbers, "--from", place, "--until-end")
        assert (read.code, read.out) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--from", "101"), 1, "There is no offset 101 yet: the next record gets 100."),
        (("--from", "yesterday"), 2, "--from yesterday: give beginning, end, an offset"),
        (("--partition", "3"), 1, "numbers has no partition 3: it has 0 to 0."),
    ],
)
def test_an_invalid_point_is_refused(
    millpond: Any, numbers: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    millpond.fails("consume", numbers, *arguments, code=code, error=message)


def test_an_unknown_topic_is_refused(millpond: Any, numbers: str) -> None:
    assert millpond("consume", "nmbers").err == "millpond: There is no topic nmbers; did you mean numbers?\n"


def test_only_the_given_partitions_are_read(millpond: Any, quick: Any) -> None:
    quick.create("three", partitions=3)
    for index in range(3):
        quick.send("three", *[str(index)] * 10, partition=index)
    assert sorted(millpond("consume", "three", "--until-end").lines) == sorted("012" * 10)
    some = millpond("consume", "three", "--until-end", "-p", "0", "-p", "2", "--from", "-4")
    assert sorted(some.lines) == sorted("02" * 4)
    # Partition 1 alone ends before the others have anything to say.
    assert millpond("consume", "three", "--until-end", "-p", "1", "--from", "9").lines == ["1"]


@pytest.mark.smoke
def test_keys_headers_and_times_stand_before_the_value(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, "v", key="k", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_123)
    quick.producer.produce(topic, None, timestamp=1_700_000_000_124)
    quick.producer.flush(60)
    read = millpond("consume", topic, "--until-end", "-k", "-H", "-t")
    assert [each.split("\t") for each in read.lines] == [
        ["0:0", "2023-11-14T22:13:20.123Z", "k", "a=1,b=(null)", "v"],
        ["0:1", "2023-11-14T22:13:20.124Z", "(null)", "-", "(null)"],
    ]


def test_header_names_that_are_not_utf8_do_not_crash(millpond: Any, quick: Any, node: Any, topic: str) -> None:
    headers = [(b"odd\xff", b"1"), (b"trace", b"t-1")]
    with Raw(int(node.address.rpartition(":")[2])) as raw:
        assert not raw.produce(topic, 0, batch_with_raw_headers([(b"v", headers)])).error_code
    read = millpond("consume", topic, "--until-end", "-H")
    assert (read.code, read.out) == (0, "odd\ufffd=1,trace=t-1\tv\n")


def test_bytes_that_are_no_text_are_escaped(
    millpond: Any, quick: Any, topic: str, in_terminal: Callable[..., Any]
) -> None:
    quick.send(topic, b"\xff\xfetea\x1b[2J")
    assert millpond("consume", topic, "--until-end").raw == b"\\xff\\xfetea\x1b[2J\n"
    screen = in_terminal("consume", topic, "--until-end")
    assert screen.finish() == 0
    assert r"\xff\xfetea\x1b[2J" in screen.text, "a record must not command the terminal"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_stopped(millpond: Any, quick: Any, topic: str, number: int) -> None:
    process = millpond.start("consume", topic)
    assert process.stdout is not None
    try:
        quick.send(topic, "one")
        assert process.stdout.readline() == b"one\n"
        quick.send(topic, "two")
        assert process.stdout.readline() == b"two\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_goes_away_is_no_error(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, *["x"] * 50_000)
    process = millpond.start("consume", topic)
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    process.stdout.close()
    process.stdout = None
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert (process.returncode, err) == (0, b"")


def test_values_are_parsed_on_request(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, '{"cups":\n 2}', "tea", b"\x00\xff")
    read = millpond("consume", topic, "--until-end", "--json-lines", "--parse", "json")
    assert [each["value"] for each in read.objects] == [{"cups": 2}, "tea", {"$base64": "AP8="}]
    assert ["unparsed" in each for each in read.objects] == [False, True, True]
    assert read.code == 1
    assert read.err.startswith("2 values could not be parsed as json: not JSON (")
    plain = millpond("consume", topic, "--count", "2", "--parse", "json")
    assert (plain.out, plain.code) == ('{"cups": 2}\ntea\n', 1)
    # What is shown as digits comes back as what it was.
    digits = millpond.succeeds("consume", topic, "--until-end", "--json-lines", "--parse", "hex")
    millpond.succeeds("produce", topic, "--json-lines", stdin_data=digits.raw)
    again = millpond("consume", topic, "--from", "3", "--until-end", "--json-lines", "--parse", "hex")
    assert [each["value"] for each in again.objects] == [each["value"] for each in digits.objects]
    assert millpond("consume", topic, "--until-end", "--parse", "hex").lines[2] == "00ff"
