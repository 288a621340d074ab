"""What a member reads and commits, and what it makes of the answers."""

from __future__ import annotations

from random import Random

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.group_reader import ReadJob, fetch_records
from millpond.sim.clients.script import Script, ScriptRunner
from millpond.sim.history.groups import CoordinationHistory, Fate
from millpond.sim.history.records import Promise


def test_a_fetch_gives_one_batch_from_where_it_was_asked(one_node) -> None:
    producer = one_node.producer()
    producer.produce(one_node.partitions[1], one_node.contents(3), Promise.SURVIVES)
    producer.produce(one_node.partitions[1], one_node.contents(2), Promise.SURVIVES)
    assert one_node.sim.run_until(producer.is_idle)
    topic = GroupTopic("t", one_node.partitions[0].topic_id, 2)
    got: list[tuple[int, list[int]]] = []

    def read() -> Script[None]:
        for position in (1, 3, 5):
            partition, records = yield from fetch_records(one_node.client(), topic, {0: 0, 1: position})
            got.append((partition, [record.offset for record in records]))

    player = ScriptRunner(one_node.sim.clock, read())
    player.start()
    assert one_node.sim.run_until(lambda: player.is_over)
    assert got == [(1, [1, 2]), (1, [3, 4]), (-1, [])]


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        (ErrorCode.NONE, Fate.DONE),
        (ErrorCode.ILLEGAL_GENERATION, Fate.REFUSED),
        (ErrorCode.KAFKA_STORAGE_ERROR, Fate.OPEN),
        (None, Fate.OPEN),
    ],
)
def test_only_a_clear_answer_settles_a_commit(one_node, code: ErrorCode | None, fate: Fate) -> None:
    history = CoordinationHistory()
    topic = GroupTopic("t", one_node.partitions[0].topic_id, 2)
    job = ReadJob(one_node.sim.clock, one_node.client(), history, topic, Random(1), pace_ms=10)
    (commit,) = history.request_commit("m", 1, {0: 5})
    job._settle(commit, code)
    assert commit.fate is fate
