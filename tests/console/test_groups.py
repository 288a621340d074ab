"""Groups, transactions and nodes over HTTP."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import TopicPartition

from millpond.admin.topics import delete_records
from millpond.base.ids import TopicPartition as Partition
from millpond.console import groups
from millpond.console.shapes import BODY_BYTES_MAX, Body
from millpond.remote.cluster import Cluster
from millpond.testing import Pond
from support.console import Console, until


@pytest.fixture
def topic(pond: Pond) -> str:
    name = pond.new_topic(2)
    for partition in (0, 1):
        pond.produce(name, *(str(number) for number in range(10)), partition=partition)
    return name


def test_a_group_shows_its_lag_and_members(console: Console, pond: Pond, topic: str) -> None:
    group = f"readers/of {topic}"
    reader = pond.consumer(group, enable_auto_commit=False)
    reader.subscribe([topic])
    until(lambda: reader.consume(20, 0.5) and len(reader.assignment()) == 2)
    reader.commit(offsets=[TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 4)], asynchronous=False)
    (row,) = console.get(f"/api/groups?filter={quote(topic)}").body["rows"]
    assert (row["state"], row["members"], row["lag"], row["topics"]) == ("stable", 1, 6, [topic])
    look = console.first_event(f"/api/live/groups/{quote(group, safe='')}")
    assert [(each["partition"], each["lag"]) for each in look["partitions"]] == [(1, 6), (0, 0)]
    assert look["partitions"][0]["behind_ms"] >= 0
    assert look["member_list"][0]["partitions"] == [[topic, 0], [topic, 1]]
    path = f"/api/groups/{quote(group, safe='')}/history"
    rebalance = until(lambda: console.get(path).body["rebalances"])[0]
    assert rebalance["members"] == 1
    assert rebalance["causes"]
    # Somebody reads: nothing is moved under their feet.
    busy = console.change("POST", f"/api/groups/{quote(group, safe='')}/reset", {"topics": [topic], "to": "end"})
    assert busy.status == 409
    assert "active member" in busy.body["error"]
    assert console.change("DELETE", f"/api/groups/{quote(group, safe='')}", {"confirm": group}).status == 409
    reader.close()


def agreed(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """What is sent by who agrees to these."""
    by_topic: dict[str, list[list[Any]]] = {}
    for each in steps:
        by_topic.setdefault(each["topic"], []).append([each["partition"], each["before"], each["after"]])
    return {"steps": by_topic}


def test_steps_of_very_many_partitions_fit_into_a_request() -> None:
    large = 10**12
    steps = [{"topic": "t" * 249, "partition": each, "before": large, "after": large} for each in range(40_000)]
    message = agreed(steps)
    assert len(json.dumps(message)) < BODY_BYTES_MAX
    assert len(groups._agreed(Body(message))) == 40_000


def test_offsets_are_reset_exactly_as_previewed_or_not_at_all(console: Console, pond: Pond, topic: str) -> None:
    group = f"reset-{topic}"
    reader = pond.consumer(group)
    reader.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)], asynchronous=False)
    path = f"/api/groups/{group}/reset"

    def committed() -> list[int]:
        return [each.offset for each in reader.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])]

    expected: dict[str, Any] = {"topics": [topic], "to": "shift", "count": 2}
    preview = console.change("POST", path, expected).body
    assert [(each["before"], each["after"]) for each in preview["steps"]] == [(3, 5), (4, 6)]
    assert not preview["is_done"]
    assert committed() == [3, 4]
    reader.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    late = console.change("POST", path, expected | agreed(preview["steps"]))
    assert late.status == 409
    assert "changed since" in late.body["error"]
    assert committed() == [7, 4]
    again = console.change("POST", path, expected).body
    assert console.change("POST", path, expected | agreed(again["steps"])).body["is_done"]
    assert committed() == [9, 6]
    # The log goes on while somebody looks: it is the offsets of the preview that they have agreed to.
    ending: dict[str, Any] = {"topics": [topic], "to": "end"}
    seen = console.change("POST", path, ending).body["steps"]
    assert [each["after"] for each in seen] == [10, 10]
    pond.produce(topic, "later", partition=1)
    assert console.change("POST", path, ending | agreed(seen)).body["is_done"]
    assert committed() == [10, 10]
    # But not to what is no longer in the log, nor to a part of it.
    back = console.change("POST", path, {"topics": [topic], "to": "beginning"}).body["steps"]
    assert console.change("POST", path, ending | agreed(back[:1])).status == 409
    with Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        delete_records(cluster, {Partition(topic, 0): 5})
    assert console.change("POST", path, ending | agreed(back)).status == 409
    assert committed() == [10, 10]
    for wrong in (7, [], [0, None], [0, None, -1], [0, None, "5"], ["0", None, 5]):
        assert console.change("POST", path, ending | {"steps": {topic: [wrong]}}).status == 400
    for shape in ([], 7, {topic: 7}, {topic: {}}):
        assert console.change("POST", path, ending | {"steps": shape}).status == 400
    assert console.change("POST", path, {"topics": [topic], "to": "nowhere"}).status == 400
    assert console.change("POST", path, {"topics": [], "to": "end"}).status == 400
    reader.close()
    assert console.change("DELETE", f"/api/groups/{group}", {"confirm": "x"}).status == 400
    assert console.change("DELETE", f"/api/groups/{group}", {"confirm": group}).status == 200
    assert console.change("POST", path, {"topics": [topic], "to": "end"}).status == 409


def test_the_cluster_shows_its_nodes_and_votes(console: Console) -> None:
    look = console.first_event("/api/live/cluster")
    (node,) = look["nodes"]
    assert node["is_controller"]
    assert (node["quorum"]["is_voter"], node["quorum"]["is_fenced"]) == (True, False)
    assert (look["behind_total"], look["leaderless_total"]) == (0, 0)


def test_an_open_transaction_is_shown_and_aborted(console: Console, pond: Pond, topic: str) -> None:
    from confluent_kafka import KafkaException, Producer

    name = f"copies/{topic}"
    producer = Producer(pond.client_settings() | {"transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(20)
    look = console.first_event("/api/live/transactions")
    (shown,) = (each for each in look["open"] if each["id"] == name)
    assert (shown["state"], shown["partitions"], shown["holds_back"]) == ("ongoing", [[topic, 0]], 1)
    assert look["hanging"] == []
    (blocked,) = (each for each in look["blocked"] if each["partition"]["topic"] == topic)
    assert (blocked["records"], blocked["transaction"], blocked["first_offset"]) == (1, name, 10)
    (row,) = console.get(f"/api/transactions?filter={quote(name, safe='')}").body["rows"]
    assert row["state"] == "ongoing"
    assert console.change("POST", "/api/transactions/abort", {"id": name, "confirm": ""}).status == 400
    assert console.change("POST", "/api/transactions/abort", {"id": name, "confirm": name}).status == 200
    assert console.change("POST", "/api/transactions/abort", {"id": name, "confirm": name}).status == 409
    wrong = {"topic": topic, "partition": 0, "producer_id": 12345}
    assert console.change("POST", "/api/transactions/abort-hanging", wrong).status == 409
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
