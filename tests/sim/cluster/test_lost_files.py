"""Files of a node are missing or outdated: it reports that, and no replica is truncated to what it has.

What the notes of a log tell to the next start: `tests/log/test_store.py`.
"""

from __future__ import annotations

import errno

import pytest
from tests.sim.cluster.test_rescue import Rescue

from millpond.broker.data_folder.incarnation import LOST, read_last_incarnation
from millpond.broker.replication.high_watermarks import FILE as HIGH_WATERMARKS_FILE
from millpond.broker.replication.replica_manager import ReplicaManager
from millpond.log.checkpoints import read_offsets
from millpond.sim.node import DATA_FOLDER, SimNode

VALUES = [b"a", b"b"]
MARKER = f"{DATA_FOLDER}/.kafka_cleanshutdown"
VOTES = f"{DATA_FOLDER}/__cluster_metadata-0/quorum-state"


class Files(Rescue):
    """Three nodes with a topic that the first one leads."""

    def __init__(self) -> None:
        super().__init__()
        self.create_topics(pond=(1, 2, 3))
        self.write(1, "pond", *VALUES)
        self.wait(self.all_have_all)
        for node in self.nodes.values():
            node.broker.housekeeping.checkpoint()
            node.broker.high_watermarks.write()
        self.sim.run_for(500)

    def all_have_all(self) -> bool:
        return all(self.values(node_id, "pond") == VALUES for node_id in self.nodes)

    def all_in_sync(self) -> bool:
        return self.controller_id != 0 and set(self.image.topics["pond"].partitions[0].isr) == {1, 2, 3}

    def stop(self, node: SimNode) -> None:
        node.stop()
        self.wait(lambda: not node.is_up)

    def epoch_told_by(self, node: SimNode) -> int:
        """That of its last life, as it tells the controller: it is written down first."""
        self.wait(lambda: read_last_incarnation(node.disk, DATA_FOLDER).incarnation_id is not None)
        return read_last_incarnation(node.disk, DATA_FOLDER).epoch


@pytest.fixture
def files() -> Files:
    return Files()


def delete_a_folder(files: Files, *, in_order: bool) -> list[list[bytes | None]]:
    """What the nodes have in the end, if that of the leader is deleted while none of them runs."""
    for node_id in (3, 2, 1):
        files.stop(files.nodes[node_id]) if in_order else files.nodes[node_id].kill()
    files.nodes[1].disk.remove_folder(f"{DATA_FOLDER}/pond-0")
    files.start(1, 2, 3)
    files.wait(files.all_in_sync, within_ms=60_000)
    return [files.values(node_id, "pond") for node_id in files.nodes]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_deleted_folder_is_copied_anew_and_not_the_others_from_it(files: Files, in_order: bool) -> None:
    assert delete_a_folder(files, in_order=in_order) == [VALUES] * 3


def delete_that_of_the_last_in_sync(files: Files) -> list[list[bytes | None]]:
    """What two replicas have in the end, if the one that led alone has lost its folder and comes back first."""
    files.create_topics(pair=(1, 2))
    files.write(1, "pair", *VALUES)
    files.nodes[1].broker.housekeeping.checkpoint()
    files.wait(lambda: files.values(2, "pair") == VALUES)
    files.nodes[2].kill()
    files.wait(lambda: files.controller_id != 0 and files.image.topics["pair"].partitions[0].isr == (1,))
    files.nodes[1].kill()
    files.nodes[1].disk.remove_folder(f"{DATA_FOLDER}/pair-0")
    files.start(1)
    files.sim.run_for(5_000)
    files.start(2)
    files.wait(lambda: set(files.image.topics["pair"].partitions[0].isr) == {1, 2}, within_ms=60_000)
    return [files.values(node_id, "pair") for node_id in (1, 2)]


def test_one_that_led_alone_does_not_lead_with_nothing(files: Files) -> None:
    assert delete_that_of_the_last_in_sync(files) == [VALUES] * 2


def test_one_that_may_have_committed_alone_does_not_lead_with_nothing(files: Files) -> None:
    """No other replica may lead by itself either, so an operator has to choose; the other one's records stay."""
    files.create_topics(1, pair=(1, 2))
    files.write(1, "pair", *VALUES)
    files.nodes[1].broker.housekeeping.checkpoint()
    files.wait(lambda: files.values(2, "pair") == VALUES)
    files.nodes[2].kill()
    files.wait(lambda: files.controller_id != 0 and files.image.topics["pair"].partitions[0].isr == (1,))
    files.nodes[1].kill()
    files.nodes[1].disk.remove_folder(f"{DATA_FOLDER}/pair-0")
    files.start(1)
    files.sim.run_for(5_000)
    files.start(2)
    files.sim.run_for(10_000)
    assert files.values(2, "pair") == VALUES


def test_without_a_look_at_what_is_missing_all_would_be_lost(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the above."""
    monkeypatch.setattr(ReplicaManager, "_check_not_missing", lambda *_: None)
    assert delete_that_of_the_last_in_sync(files) == [[]] * 2


def test_a_start_that_fails_after_a_power_cut_does_not_make_it_a_clean_end(files: Files) -> None:
    node = files.nodes[2]
    node.crash()
    node.disk.fail_syncs("__cluster_metadata")
    assert not node.start()
    assert not node.disk.exists(MARKER)
    node.disk.heal()
    assert node.start()
    assert files.epoch_told_by(node) < LOST, "all but what was not synced"


def test_a_life_that_could_not_note_what_it_found_has_no_clean_end(files: Files) -> None:
    node = files.nodes[2]
    node.crash()
    node.disk.fail_opens("broker.epoch.tmp", code=errno.ENOSPC)
    assert node.start()
    files.sim.run_for(1_000)
    files.stop(node)
    assert not node.disk.exists(MARKER)
    node.disk.heal()
    assert node.start()
    assert files.epoch_told_by(node) < LOST


def test_a_clean_end_is_still_one_after_a_start_that_failed(files: Files) -> None:
    node = files.nodes[2]
    files.stop(node)
    node.disk.fail_syncs("__cluster_metadata")
    assert not node.start()
    node.disk.heal()
    assert node.start()
    assert files.epoch_told_by(node) > LOST


def test_what_was_committed_is_still_noted_by_one_that_waits_for_others(files: Files) -> None:
    name = f"{files.image.topics['pond'].id}"
    files.end()
    node = files.nodes[1]
    for _ in range(2):
        assert node.start()
        files.sim.run_for(12_000)
        marks = read_offsets(node.disk, f"{DATA_FOLDER}/{HIGH_WATERMARKS_FILE}")
        assert {each.topic: offset for each, offset in marks.items()}[name] == 2
        files.stop(node)
    files.start(1, 2, 3)
    files.wait(files.all_in_sync, within_ms=30_000)
    assert files.all_have_all()


def test_a_voter_that_has_lost_its_votes_knows_that_it_has(files: Files) -> None:
    node = files.nodes[2]
    node.kill()
    node.disk.remove(VOTES)
    assert node.start()
    assert node.broker.controller.host.is_new
    files.wait(lambda: files.all_in_sync() and not node.broker.controller.host.is_new)
