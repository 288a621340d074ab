"""Transactions from the command line: a producer that dies in the middle of one, and a transaction that hangs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millpond.wire.records import Record, encode_batch

DYING_PRODUCER = """
import os, signal, sys
from confluent_kafka import Producer
bootstrap, name, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 60000})
producer.init_transactions(20)
producer.begin_transaction()
for _ in range(5):
    producer.produce(topic, b"x", partition=0)
assert producer.flush(60) == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left_open(node: Any) -> Callable[[str, str], None]:
    def leave(name: str, topic: str) -> None:
        done = subprocess.run([sys.executable, "-c", DYING_PRODUCER, node.address, name, topic], timeout=60)
        assert done.returncode == -signal.SIGKILL

    return leave


def stable_end(admin: AdminClient, topic: str) -> int:
    """How far readers of committed records can read."""
    screen = {TopicPartition(topic, 0): OffsetSpec.latest()}
    (future,) = admin.list_offsets(screen, isolation_level=IsolationLevel.READ_COMMITTED).values()
    return int(future.result(60).offset)


def test_a_transaction_whose_producer_died_is_found_and_aborted(
    millpond: Any, quick: Any, topic: str, left_open: Callable[[str, str], None]
) -> None:
    quick.send(topic, "before")
    left_open("payments-1", topic)
    quick.send(topic, "after")
    assert stable_end(quick.admin, topic) == 1

    (listed,) = json.loads(millpond("txn", "list", "--state", "ongoing", "--json").out)
    assert (listed["id"], listed["state"], listed["timeout_ms"]) == ("payments-1", "ongoing", 60_000)
    assert listed["partitions"] == [{"topic": topic, "partition": 0}]
    assert 0 <= listed["open_ms"] < 30_000
    assert json.loads(millpond("txn", "list", "--older-than", "1m", "--json").out) == []
    assert "payments-1" in millpond("txn", "list", "--older-than", "1ms").out

    output = millpond.succeeds("txn", "describe", "payments-1")
    assert output.lines[0].startswith("payments-1: ongoing for ")
    # It begins at 1, and with the record after it six are held back.
    assert output.lines[-1].split()[:4] == [topic, "0", "1", "6"]
    assert millpond("txn", "hanging", "--topic", topic).out == "No transaction hangs.\n"

    here = ("txn", "abort", "--topic", topic, "--partition", "0", "--producer-id", str(listed["producer_id"]))
    refused = millpond(*here)
    assert refused.code == 1
    assert refused.err == (
        "millpond: This transaction is not hanging but ongoing: abort all of it with "
        "`millpond txn abort --id payments-1`.\n"
    )
    done = millpond.succeeds("txn", "abort", "--id", "payments-1")
    assert done.out.startswith("Aborted the transaction of payments-1 after ")
    # Its five records, the one after it, and the marker.
    assert stable_end(quick.admin, topic) == 8
    again = millpond("txn", "abort", "--id", "payments-1")
    assert again.code == 1
    assert again.err.startswith("millpond: payments-1 has no open transaction: ")


def test_aborting_fences_the_producer_that_still_runs(millpond: Any, node: Any, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": "still-there", "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(60)
    millpond.succeeds("txn", "abort", "--id", "still-there")
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(20)
    assert refused.value.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


def test_a_hanging_transaction_is_aborted_in_its_partition(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    lonely("topic", "create", "stuck", "-b", node.address)
    lonely("produce", "stuck", "-b", node.address, stdin_data="one\ntwo\n")
    # A batch of a transaction that no coordinator ever heard of, as a crashed broker of old may have left it.
    node.stop(signal.SIGKILL)
    lost = Record(2, time.time_ns() // 1_000_000, None, b"lost")
    batch = encode_batch(
        [lost],
        base_offset=2,
        leader_epoch=0,
        producer_id=7777,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    (log,) = Path(node.data).rglob("stuck-0/*.log")
    with log.open("ab") as file:
        file.write(batch)

    node = start_node(data=node.data)
    transactions = lonely.succeeds("txn", "hanging", "-b", node.address)
    assert transactions.lines[1].split()[:4] == ["stuck", "0", "2", "1"]
    assert transactions.lines[-1] == "To end one: millpond txn abort --topic stuck --partition 0 --producer-id 7777"
    here = ("txn", "abort", "-b", node.address, "--topic", "stuck", "--partition", "0", "--producer-id")
    other = lonely(*here, "1")
    assert other.err == ("millpond: Producer 1 has no open transaction in stuck-0; producers with one there: 7777.\n")
    done = lonely(*here, "7777")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Aborted the transaction of producer 7777 in stuck-0, open since offset 2.\n"
    assert lonely("txn", "hanging", "-b", node.address).out == "No transaction hangs.\n"
    assert stable_end(AdminClient({"bootstrap.servers": node.address, "log_level": 0}), "stuck") == 4


def test_invalid_requests_are_refused(millpond: Any, topic: str) -> None:
    unknown = millpond("txn", "describe", "nobody")
    assert unknown.code == 1
    assert unknown.err.startswith("millpond: There is no transactional id nobody")
    assert "There is no transactional id" in millpond("txn", "abort", "--id", "nobody").err
    nothing = millpond("txn", "abort", "--topic", topic, "--partition", "0", "--producer-id", "5")
    assert nothing.err == f"millpond: Producer 5 has no open transaction in {topic}-0; there is none at all.\n"
    assert "There is no topic zzzz" in millpond("txn", "hanging", "--topic", "zzzz").err
    millpond.fails(
        "txn",
        "list",
        "-X",
        "security.protocol=sasl_plaintext",
        "-X",
        "sasl.mechanism=KERBEROS",
        code=2,
        error="choose one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("abort",),
        ("abort", "--topic", "t", "--partition", "0"),
        ("abort", "--id", "x", "--partition", "0"),
        ("list", "--older-than", "soon"),
        ("list", "--state", "sleepy"),
    ],
)
def test_half_a_name_is_refused(arguments: tuple[str, ...]) -> None:
    from click.testing import CliRunner

    from millpond.cli.txn import command

    assert CliRunner().invoke(command, list(arguments)).exit_code == 2
