"""Lines become records."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.node import eventually

RECORDS = 10_000


@pytest.mark.smoke
def test_lines_with_keys_and_headers(millpond: Any, topic: str) -> None:
    sent = millpond.succeeds(
        "produce",
        topic,
        "-k",
        r"\t",
        "--headers",
        "from=here",
        "--headers",
        "n=1",
        stdin_data="tea\t2\nplain\n\na\tb\tc",
    )
    assert sent.out == ""
    assert re.fullmatch(r"4 records, 13 bytes in (\d+ ms|[\d.]+ s) \([\d,]+ a second\)\n", sent.err)
    read = millpond("consume", topic, "--until-end", "--json-lines").objects
    assert [(each["key"], each["value"]) for each in read] == [
        ("tea", "2"),
        (None, "plain"),
        (None, ""),
        ("a", "b\tc"),
    ]
    assert all(each["headers"] == {"from": "here", "n": "1"} for each in read)


def _serves_find_coordinator() -> bool:
    """librdkafka takes it as the sign of a broker that understands LZ4, and sends plain batches to others."""
    from millpond.broker.apis import APIS

    return any(getattr(api, "key", api) == 10 for api in APIS)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_ten_thousand_records_come_back_as_they_went(
    millpond: Any, node: Any, topic: str, codec: str, tmp_path: Path
) -> None:
    lines = [
        json.dumps(
            {
                "key": f"k{n % 97}",
                "value": f"value {n} ☕ " * 3,
                "headers": {"n": str(n)},
                "timestamp": 1_700_000_000_000 + n,
            }
        )
        for n in range(RECORDS)
    ]
    source = tmp_path / "records.jsonl"
    source.write_text("\n".join(lines))
    sent = millpond.succeeds("produce", topic, "--json-lines", "--compression", codec, "--file", str(source))
    assert sent.err.startswith("10,000 records, ")

    read = millpond("consume", topic, "--until-end", "--json-lines").objects
    assert [each["offset"] for each in read] == list(range(RECORDS))
    kept = [{name: each[name] for name in ("key", "value", "headers", "timestamp")} for each in read]
    assert kept == [json.loads(line) for line in lines]

    (segment,) = (node.data / f"{topic}-0").glob("*.log")
    dumped = millpond.succeeds("log", "dump", str(segment), "--deep")
    codecs = {line.split()[4] for line in dumped.lines if line.split()[0].isdigit() and "ok" in line}
    if codec != "lz4" or _serves_find_coordinator():
        assert codecs == {codec}


@pytest.mark.smoke
def test_what_consume_prints_produce_sends(millpond: Any, topic: str) -> None:
    odd = [
        {"key": {"$base64": "/wA="}, "value": None, "headers": [["a", "1"], ["a", {"$base64": "/g=="}]]},
        {"key": None, "value": "line\nbreak", "headers": {}},
    ]
    millpond("produce", topic, "-j", stdin_data="\n".join(map(json.dumps, odd)))
    first = millpond("consume", topic, "--until-end", "-j")
    millpond("produce", topic, "-j", "--acks", "1", stdin_data=first.raw)
    both = millpond("consume", topic, "--until-end", "-j").objects
    assert len(both) == 4
    for before, after, expected in zip(both[:2], both[2:], odd, strict=True):
        assert {**before, "offset": 0} == {**after, "offset": 0}
        assert {name: before[name] for name in expected} == expected


@pytest.mark.parametrize("acks", ["0", "1"])
def test_fewer_acknowledgements(millpond: Any, topic: str, acks: str) -> None:
    millpond.succeeds("produce", topic, "--acks", acks, stdin_data="x\ny\n")
    assert millpond("consume", topic, "-n", "2").out == "x\ny\n"


def test_the_rate_is_held(millpond: Any, topic: str) -> None:
    began = time.monotonic()
    millpond.succeeds("produce", topic, "--rate", "50", "--acks", "1", stdin_data="x\n" * 50)
    assert time.monotonic() - began > 0.95


def test_a_stop_signal_prints_what_was_sent(millpond: Any, topic: str) -> None:
    process = millpond.start("produce", topic, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n3\n")
    process.stdin.flush()
    assert eventually(lambda: millpond("consume", topic, "--until-end").lines == ["1", "2", "3"])
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 0, message
    assert message.decode().startswith("3 records, 3 bytes")


def test_create_makes_a_missing_topic(millpond: Any) -> None:
    for result in ("Created topic made-by-produce.\n", ""):
        sent = millpond.succeeds("produce", "made-by-produce", "--create", stdin_data="1\n")
        assert sent.err.startswith(f"{result}1 record, 1 byte")


def test_a_line_that_is_no_record_is_named_and_those_before_it_are_sent(millpond: Any, topic: str) -> None:
    sent = millpond(
        "produce", topic, "-j", "--acks", "1", stdin_data='{"value": "a"}\n\n{"valu": "b"}\n{"value": "c"}\n'
    )
    assert sent.code == 1
    assert sent.err.endswith("millpond: Line 3 is not a record: unknown field valu.\n")
    assert millpond("consume", topic, "--until-end").out == "a\n"


def test_a_record_that_is_refused_is_counted_with_the_reason(millpond: Any, topic: str) -> None:
    millpond.fails(
        "produce",
        topic,
        stdin_data="x\n" + "y" * 2_000_000 + "\nz\n",
        error="1 of 3 records were not acknowledged: a record is too large;",
    )
    assert millpond("consume", topic, "--until-end").out == "x\nz\n"


def test_the_brokers_refusal_is_passed_on(millpond: Any, quick: Any) -> None:
    quick.create("small", max_message_bytes="200")
    millpond.fails("produce", "small", stdin_data="y" * 1000, error="1 of 1 records were not acknowledged: ")


def test_a_compacted_topic_without_a_key_is_explained(millpond: Any, quick: Any) -> None:
    quick.create("table", cleanup_policy="compact")
    millpond.fails("produce", "table", stdin_data="y", error="each record needs a key (--key-separator)")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--partition", "7"), 1, "has no partition 7: it has 0 to 0."),
        (("--file", "nowhere.txt"), 1, "nowhere.txt cannot be read: no such file or directory."),
        (("--headers", "x"), 2, "--headers x: give it as name=value."),
        (("--json-lines", "--key-separator", ":"), 2, "the key is a field."),
    ],
)
def test_invalid_options_are_refused(
    millpond: Any, topic: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    millpond.fails("produce", topic, *arguments, stdin_data="x", code=code, error=message)


def test_an_unknown_topic_is_not_made_by_mistake(millpond: Any) -> None:
    result = millpond("produce", "unheard.of", stdin_data="x")
    assert result.code == 1
    assert result.err == (
        "millpond: There is no topic unheard.of; create it with `millpond topic create unheard.of`. To create it, "
        "add --create.\n"
    )
    assert "unheard.of" not in millpond("topic", "list").out
    near = (
        millpond("produce", "unheard.off", "--create", stdin_data="x"),
        millpond("produce", "unheard.of", stdin_data="x"),
    )
    assert near[1].err == (
        "millpond: There is no topic unheard.of; did you mean unheard.off? To create it, add --create.\n"
    )


def test_a_lost_node_is_reported(start_node: Callable[..., Any], lonely: Any, tmp_path: Path) -> None:
    node = start_node()
    lonely("topic", "create", "t", "-b", node.address)
    with open(tmp_path / "err", "wb") as err:
        process = lonely.start(
            "produce", "t", "-b", node.address, "--rate", "100", "-X", "message.timeout.ms=3000", stdin=-1
        )
        assert process.stdin is not None
        process.stdin.write(b"x\n" * 100)
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            (topic,) = json.loads(lonely("topic", "describe", "t", "--json", "-b", node.address).out)
            if topic["partitions"][0]["end"]:
                break
        node.stop(9)
        process.stdin.write(b"x\n" * 50)
        process.stdin.close()
        process.stdin = None
        _, result = process.communicate(timeout=60)
        err.write(result)
    assert process.returncode == 1
    last = result.decode().splitlines()[-1]
    assert "records were not acknowledged: " in last
    assert "`millpond status` shows the state of the nodes" in last
    assert "%" not in result.decode(), "librdkafka's own lines stay away"
