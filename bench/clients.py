"""Client libraries compared: messages per second sent to and read from one node, and their CPU time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack

from bench.measure import MEGA, Client, Plan, Slice, client, per_unit
from bench.node import Node
from bench.noise import Measured
from bench.race import in_turn

RECORDS = 200_000
RECORDS_QUICK = 20_000
SENDERS = {
    "confluent": "confluent-kafka bare, produce",
    "millpond": "Producer.send",
    "millpond_async": "AsyncProducer.queue",
    "aiokafka": "aiokafka, send",
    "kafka_python": "kafka-python, send",
    "faststream": "FastStream (confluent), publish",
}
READERS = {
    "confluent": "confluent-kafka bare, consume(500)",
    "millpond": "Consumer.poll(500)",
    "millpond_async": "AsyncConsumer.poll(500)",
    "aiokafka": "aiokafka, getmany(500)",
    "kafka_python": "kafka-python, poll(500)",
    "worker": "a worker with a trivial handler",
    "faststream": "FastStream (confluent), a trivial handler",
}
NEEDS = {"aiokafka": "aiokafka", "kafka_python": "kafka", "faststream": "faststream"}
BARE = "confluent"


def _missing(how: str) -> bool:
    return how in NEEDS and importlib.util.find_spec(NEEDS[how]) is None


def measure_clients(plan: Plan) -> Iterator[tuple[str, Measured | str, float | None]]:
    """Each library: its title, its figures or why it is left out, and its speed relative to confluent-kafka."""
    records = RECORDS_QUICK if plan.quick else RECORDS
    with Node() as node:
        for load, verb, titles in (("Sends", "send", SENDERS), ("Reads", "read", READERS)):
            node.create_topic(verb)
            if load == "Reads":
                with client("Sends", node, topic=verb, how=BARE, records=records) as writer:
                    writer.run(1)
            present = [how for how in titles if not _missing(how)]
            with ExitStack() as stack:
                slices = {
                    how: _slice(stack.enter_context(client(load, node, topic=verb, how=how, records=records)), node)
                    for how in present
                }
                found = in_turn(plan, slices)
            bare = found[BARE]["messages_per_s"]
            for how, title in titles.items():
                if how in found:
                    yield f"{verb}: {title}", found[how], found[how]["messages_per_s"] / bare
                else:
                    yield f"{verb}: {title}", "left out: pip install 'millpond[bench]'", None


def _slice(started: Client, node: Node) -> Slice:
    """The CPU time is the client's; the node's is a separate figure."""

    def one(seconds: float) -> Measured:
        before, node_before = started.cpu_seconds(), node.cpu_seconds()
        measured = started.run(seconds)
        found = per_unit(measured, started.cpu_seconds() - before, started.resident_bytes())
        found["node_cpu_s_per_million"] = (node.cpu_seconds() - node_before) / (measured["messages"] / MEGA)
        return found

    return one
