"""The history of a group, as a real node writes it down."""

from __future__ import annotations

import json
import time

from millpond.admin.history import read_history, read_rebalance
from millpond.remote.cluster import Cluster
from millpond.testing import Pond


def test_rebalances_are_read_back_with_their_causes_and_moves(cluster: Cluster, pond: Pond, topic: str) -> None:
    group = f"{topic}-group"
    began_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        consumer = pond.consumer(group, client_id="till")
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.close()
    deadline = time.monotonic() + 60
    while len(read_history(cluster, group, limit=50) or ()) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    rebalances = read_history(cluster, group, limit=50)
    assert rebalances is not None
    assert [each.members for each in rebalances] == [1, 0, 1, 0]
    first = rebalances[0]
    assert (first.causes[0].why, first.causes[0].client_id) == ("joined", "till")
    assert {move.partition.partition for move in first.moves} == {0, 1}
    assert all(move.before is None and move.after for move in first.moves)
    assert began_ms <= first.started_ms <= rebalances[-1].started_ms
    assert first.paused_ms is not None
    assert [each.written for each in rebalances[-2:]] == [
        each.written for each in read_history(cluster, group, limit=2) or ()
    ]
    later = read_history(cluster, group, since_ms=time.time_ns() // 1_000_000 + 60_000)
    assert later == []
    assert read_history(cluster, "nobody") == []
    assert read_history(cluster, group, topic="no-such-history") is None


def test_what_a_later_version_writes_in_another_way_is_passed_over() -> None:
    topics = {
        "started_ms": 1, "generation": 2, "members": 1, "paused_ms": 3, "moves": [], "moves_total": 0,
        "causes": [{"why": "joined", "member_id": "m"}], "leader": "m",
    }  # fmt: skip
    read = read_rebalance(json.dumps(topics).encode())
    assert read is not None
    assert (read.generation, read.protocol, read.causes[0].client_host) == (2, "", "")
    assert read.written["leader"] == "m"
    for other in (b"no json", b"[]", b"7", json.dumps(topics | {"causes": [7]}).encode(), b'{"started_ms": 1}'):
        assert read_rebalance(other) is None
