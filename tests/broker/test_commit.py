"""The way of every change of metadata: the reply waits for the commit, and a refusal is a reply, too."""

from __future__ import annotations

from millpond.broker.api import Encoded
from millpond.broker.commit import commit
from millpond.metadata.decision import Decision
from millpond.metadata.records import NoOpRecord


def submit(desk, records: tuple = (NoOpRecord(),)):
    heard: list[bytes] = []
    wait = commit(
        desk.broker,
        lambda _: Decision(records, "done"),
        lambda reply: Encoded(reply.encode()),
        lambda refused: Encoded(refused.code.name.encode()),
    )
    wait.then(lambda reply: heard.append(reply.body))
    return wait, heard


def test_the_reply_waits_until_the_records_are_committed(desk) -> None:
    committed = desk.broker.controller.committed_offset
    wait, heard = submit(desk)
    assert (wait.ended, heard) == (False, [])
    desk.sim.run_for(100)
    assert heard == [b"done"]
    assert desk.broker.controller.committed_offset == committed + 1


def test_a_decision_without_records_is_answered_at_once(desk) -> None:
    _, heard = submit(desk, ())
    assert heard == [b"done"]


def test_a_metadata_log_that_cannot_be_synced_refuses(desk) -> None:
    desk.node.disk.fail_syncs("__cluster_metadata")
    _, heard = submit(desk)
    desk.sim.run_for(100)
    assert heard == [b"KAFKA_STORAGE_ERROR"]
    _, heard = submit(desk)
    assert heard == [b"KAFKA_STORAGE_ERROR"]


def test_a_client_that_has_gone_leaves_the_decision_standing(desk) -> None:
    committed = desk.broker.controller.committed_offset
    wait, heard = submit(desk)
    wait.cancel()
    desk.sim.run_for(100)
    assert heard == []
    assert desk.broker.controller.committed_offset == committed + 1
