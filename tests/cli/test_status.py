"""How a cluster is, at a glance."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from tests.cli.conftest import Quick

from millpond.client.dead_letters import dead_letter, origin_of
from millpond.client.message import Message, header_list
from support.console import Console


@pytest.mark.smoke
def test_all_is_well_where_nothing_is_wrong(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    status = lonely("status", "--free", "1B", "-b", node.address)
    assert (status.code, status.lines[-1]) == (0, "All is well."), status.out
    assert status.lines[1].split()[:3] == ["1", node.address, "controller"]
    assert str(node.data) in status.lines[1]


def test_internal_partitions_are_not_counted(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    lonely.succeeds("topic", "create", "pond", "--partitions", "3", "-b", node.address)
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
    # Asking for offsets is what makes the topics of groups.
    consumer.committed([TopicPartition("pond", 0)], timeout=30)
    consumer.close()
    status = lonely("status", "--free", "1B", "-b", node.address)
    assert status.lines[1].split()[3:7] == ["3", "3", "of", "3"], status.out
    (facts,) = json.loads(lonely("status", "--json", "--free", "1B", "-b", node.address).out)["nodes"]
    internal = facts["internal"]
    assert (facts["leads"], internal["leads"]) == (internal["replicas"] + 3, internal["in_sync"])
    assert internal["leads"] > 0
    left_out = f"The table leaves out {internal['leads']} partitions of internal topics."
    assert left_out in status.lines
    listed = lonely("node", "list", "-b", node.address)
    assert "3 of 3" in listed.lines[1], listed.out
    assert left_out in listed.lines
    (as_json,) = json.loads(lonely("node", "list", "--json", "-b", node.address).out)
    assert (as_json["leads"], as_json["internal"]) == (facts["leads"], internal)


def test_a_late_group_is_reported(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, "1", "2")
    group = f"late-{topic}"
    expected = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
    quick.admin.alter_consumer_group_offsets(expected)[group].result(60)
    time.sleep(0.1)
    status = millpond("status", "--free", "1B", "--behind", "50ms", "--json")
    health = json.loads(status.out)
    assert (status.code, health["is_well"]) == (1, False)
    (problem,) = [each for each in health["problems"] if group in each]
    assert "2 records unread, 0 members." in problem
    (facts,) = [each for each in health["groups"] if each["group"] == group]
    assert (facts["lag"], facts["members"]) == (2, 0)


def test_a_full_disk_is_reported(millpond: Any) -> None:
    status = millpond("status", "--free", "1000PB", "--behind", "1000d")
    assert status.code == 1
    assert any("! The disk of node 1 is nearly full: " in line for line in status.lines), status.out


def test_alive_only_checks_for_an_answer(start_node: Callable[..., Any], lonely: Any) -> None:
    """Clients are told an address that leads nowhere from here, as from inside a container."""
    node = start_node("--set", "advertised.listener=127.0.0.1:1")
    status = lonely("status", "--alive", "--free", "1000PB", "-b", node.address)
    assert (status.code, status.out) == (0, "The cluster answers; 1 node.\n"), status.err
    assert json.loads(lonely("status", "--alive", "--json", "-b", node.address).out) == {"is_alive": True, "nodes": 1}
    node.stop()
    assert lonely("status", "--alive", "-b", node.address).code == 1


def test_a_node_that_is_gone_is_a_failure(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    node.stop()
    lonely.fails("status", "-b", node.address, error="Nothing listens")
    assert lonely("status", "--behind", "soon").code == 2
    assert lonely("status", "--free", "much").code == 2


def test_waiting_dead_letters_are_reported_until_redriven(start_node: Callable[..., Any], lonely: Any) -> None:
    at = start_node().address
    quick = Quick(at)
    quick.create("orders")
    box = quick.create("orders.bad")
    message = Message("orders", 0, 0, 0, b"k", b"v", ())
    letter = dead_letter(
        message, ValueError("bad"), to=box, origin=origin_of(message), attempts=5, group="billing", now_ms=0
    )
    quick.send(box, b"v", headers=header_list(letter.headers))
    status = lonely("status", "--free", "1B", "-b", at)
    assert status.code == 1
    assert "! 1 dead letter waits in orders.bad: see `millpond dlq show orders.bad`." in status.lines
    with closing(Console(at)) as console:
        concerns = console.first_event("/api/live/overview")["concerns"]
        assert {"kind": "LettersWaiting", "facts": {"topic": "orders.bad", "count": 1}} in concerns
    lonely.succeeds("dlq", "redrive", "orders.bad", "--all", "-b", at)
    status = lonely("status", "--free", "1B", "-b", at, "--json")
    assert json.loads(status.out)["dead_letters"] == {}
    assert status.code == 0, status.out
