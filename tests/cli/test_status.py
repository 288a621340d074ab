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
    told = lonely("status", "--free", "1B", "-b", node.address)
    assert (told.code, told.lines[-1]) == (0, "All is well."), told.out
    assert told.lines[1].split()[:3] == ["1", node.address, "controller"]
    assert str(node.data) in told.lines[1]


def test_partitions_that_nobody_made_are_not_counted(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    assert lonely("topic", "create", "pond", "--partitions", "3", "-b", node.address).code == 0
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "g"})
    # Asking for offsets is what makes the topics of groups.
    consumer.committed([TopicPartition("pond", 0)], timeout=30)
    consumer.close()
    told = lonely("status", "--free", "1B", "-b", node.address)
    assert told.lines[1].split()[3:7] == ["3", "3", "of", "3"], told.out
    (facts,) = json.loads(lonely("status", "--json", "--free", "1B", "-b", node.address).out)["nodes"]
    internal = facts["internal"]
    assert (facts["leads"], internal["leads"]) == (internal["replicas"] + 3, internal["in_sync"])
    assert internal["leads"] > 0
    left_out = f"The table leaves out {internal['leads']} partitions of internal topics."
    assert left_out in told.lines
    listed = lonely("node", "list", "-b", node.address)
    assert "3 of 3" in listed.lines[1], listed.out
    assert left_out in listed.lines
    (as_json,) = json.loads(lonely("node", "list", "--json", "-b", node.address).out)
    assert (as_json["leads"], as_json["internal"]) == (facts["leads"], internal)


def test_a_group_that_falls_behind_is_told(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, "1", "2")
    group = f"late-{topic}"
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
    quick.admin.alter_consumer_group_offsets(wanted)[group].result(60)
    time.sleep(0.1)
    told = millpond("status", "--free", "1B", "--behind", "50ms", "--json")
    health = json.loads(told.out)
    assert (told.code, health["is_well"]) == (1, False)
    (problem,) = [each for each in health["problems"] if group in each]
    assert "2 records unread, 0 members." in problem
    (facts,) = [each for each in health["groups"] if each["group"] == group]
    assert (facts["lag"], facts["members"]) == (2, 0)


def test_a_disk_without_room_is_told(millpond: Any) -> None:
    told = millpond("status", "--free", "1000PB", "--behind", "1000d")
    assert told.code == 1
    assert any("! The disk of node 1 is nearly full: " in line for line in told.lines), told.out


def test_alive_asks_only_whether_somebody_answers(start_node: Callable[..., Any], lonely: Any) -> None:
    """Clients are told an address that leads nowhere from here, as from inside a container."""
    node = start_node("--set", "advertised.listener=127.0.0.1:1")
    told = lonely("status", "--alive", "--free", "1000PB", "-b", node.address)
    assert (told.code, told.out) == (0, "The cluster answers; 1 node.\n"), told.err
    assert json.loads(lonely("status", "--alive", "--json", "-b", node.address).out) == {"is_alive": True, "nodes": 1}
    node.stop()
    assert lonely("status", "--alive", "-b", node.address).code == 1


def test_a_node_that_is_gone_is_a_failure(start_node: Callable[..., Any], lonely: Any) -> None:
    node = start_node()
    node.stop()
    told = lonely("status", "-b", node.address)
    assert told.code == 1
    assert "Nothing listens" in told.err
    assert lonely("status", "--behind", "soon").code == 2
    assert lonely("status", "--free", "much").code == 2


def test_dead_letters_that_wait_are_told_until_they_are_redriven(start_node: Callable[..., Any], lonely: Any) -> None:
    at = start_node().address
    quick = Quick(at)
    quick.create("orders")
    box = quick.create("orders.bad")
    message = Message("orders", 0, 0, 0, b"k", b"v", ())
    letter = dead_letter(
        message, ValueError("bad"), to=box, origin=origin_of(message), attempts=5, group="billing", now_ms=0
    )
    quick.send(box, b"v", headers=header_list(letter.headers))
    told = lonely("status", "--free", "1B", "-b", at)
    assert told.code == 1
    assert "! 1 dead letter waits in orders.bad: see `millpond dlq show orders.bad`." in told.lines
    with closing(Console(at)) as console:
        concerns = console.first_event("/api/live/overview")["concerns"]
        assert {"kind": "LettersWaiting", "facts": {"topic": "orders.bad", "count": 1}} in concerns
    assert lonely("dlq", "redrive", "orders.bad", "--all", "-b", at).code == 0
    told = lonely("status", "--free", "1B", "-b", at, "--json")
    assert json.loads(told.out)["dead_letters"] == {}
    assert told.code == 0, told.out
