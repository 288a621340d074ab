"""An old copy of a node's folder is put back: it must not vote, lead or count with what it has forgotten."""

from __future__ import annotations

import pytest
from tests.sim.cluster.test_rescue import Rescue
from tests.support.patience import with_time

from millpond.broker.data_folder.incarnation import read_last_incarnation
from millpond.broker.rescue.plan import Wish
from millpond.sim.cluster.plan import make_plan
from millpond.sim.cluster.shrinker import play
from millpond.sim.node import DATA_FOLDER, PORT, SimNode
from millpond.sim.world.disk import SimDisk


class OldDisks(Rescue):
    """A cluster of which node 2 gets an old copy of its disk, made while it ran."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(count)
        self.create_topics(pond=(1, 2, 3))
        self.write(1, "pond", b"a")
        self.copy = self.nodes[2].disk.contents()

    def all_in_sync(self) -> bool:
        return self.controller_id != 0 and all(
            set(each.isr) == set(each.replicas) for topic in self.image.topics.values() for each in topic.partitions
        )

    def put_back(self) -> None:
        self.sim.roll_back("node2", self.copy)


def name_voters(old: OldDisks) -> None:
    """From now on the log names the voters."""
    old.nodes[old.controller_id].broker.controller.raise_kraft_version().then(lambda _: None)
    old.wait(lambda: all(node.broker.controller.kraft_version for node in old.nodes.values()))


@pytest.fixture
def old() -> OldDisks:
    return OldDisks()


def forget_metadata(old: OldDisks) -> set[str]:
    """Nodes 1 and 2 commit a topic of which 3 hears nothing; 2 forgets it, and 1 is away. The topics that 3 knows."""
    old.nodes[3].kill()
    old.create_topics(late=(1, 2))
    old.nodes[1].kill()
    old.nodes[2].kill()
    old.put_back()
    for node_id in (2, 3):
        assert old.nodes[node_id].start()
    old.sim.run_for(10_000)
    was_led = old.controller_id != 0
    assert old.nodes[1].start()
    if was_led:
        # It may not even get so far: what it knows to be committed is overruled.
        old.sim.run_for(5_000)
        return set(old.nodes[3].broker.image.topics)
    old.wait(lambda: old.nodes[3].broker.lifecycle.ready.ended and old.all_in_sync(), within_ms=20_000)
    return set(old.nodes[3].broker.image.topics)


def test_a_voter_on_an_old_disk_elects_no_candidate_that_lacks_records(old: OldDisks) -> None:
    assert forget_metadata(old) == {"pond", "late"}
    assert any("the data folder is a copy" in line for line in old.nodes[2].journal_lines)


def test_without_the_mark_what_was_committed_would_be_lost(old: OldDisks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the above."""
    monkeypatch.setattr(SimDisk, "mark", lambda *_: None)
    assert "late" not in forget_metadata(old)


def lead_with_what_is_left() -> list[bytes | None]:
    """Of two replicas both are gone for a while; the one that has forgotten comes back first. What they hold then."""
    old = OldDisks(count=5)
    old.create_topics(pair=(1, 2))
    old.write(1, "pair", b"a")
    old.wait(lambda: old.values(2, "pair") == [b"a"])
    old.copy = old.nodes[2].disk.contents()
    old.write(1, "pair", b"b")
    for node_id in (2, 1):
        old.nodes[node_id].kill()
        old.wait(lambda node_id=node_id: old.image.brokers[node_id].fenced)  # type: ignore[misc]
    old.put_back()
    assert old.nodes[2].start()
    old.sim.run_for(5_000)
    assert old.nodes[1].start()
    old.wait(old.all_in_sync, within_ms=30_000)
    return old.values(old.image.topics["pair"].partitions[0].leader, "pair")


def test_an_old_replica_does_not_lead_with_what_is_left() -> None:
    assert lead_with_what_is_left() == [b"a", b"b"]


def test_without_the_mark_acknowledged_records_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the above."""
    monkeypatch.setattr(SimDisk, "mark", lambda *_: None)
    assert lead_with_what_is_left() == [b"a"]


def test_a_copy_of_a_folder_that_was_closed_in_order_is_trusted_with_its_records(old: OldDisks) -> None:
    """It was moved to another disk: whether it is up to date its epoch tells."""
    old.nodes[2].stop()
    old.wait(lambda: not old.nodes[2].is_up)
    epoch = read_last_incarnation(old.nodes[2].disk, DATA_FOLDER).epoch
    old.copy = old.nodes[2].disk.contents()
    old.put_back()
    assert old.nodes[2].start()
    old.wait(old.is_whole, within_ms=20_000)
    assert old.image.brokers[2].epoch > epoch
    old.wait(lambda: not old.nodes[2].broker.controller.host.is_new, within_ms=20_000)


def test_all_nodes_are_moved_to_other_disks_at_once(old: OldDisks) -> None:
    for node in old.nodes.values():
        node.stop()
    old.wait(lambda: not any(node.is_up for node in old.nodes.values()), within_ms=30_000)
    for node_id, node in old.nodes.items():
        old.sim.roll_back(f"node{node_id}", node.disk.contents())
    for node in old.nodes.values():
        assert node.start()
    old.wait(lambda: old.controller_id != 0 and old.is_whole(), within_ms=30_000)
    assert old.values(1, "pond") == [b"a"]


def test_all_nodes_are_moved_while_the_log_names_the_voters(old: OldDisks) -> None:
    """They elect no leader, but they have started: each copy has a new, unknown directory id. A rescue
    takes the folders all the same."""
    name_voters(old)
    before = {node_id: node.broker.controller.directory_id for node_id, node in old.nodes.items()}
    old.end()
    for node_id, node in old.nodes.items():
        old.sim.roll_back(f"node{node_id}", node.disk.contents())
    for node_id, node in old.nodes.items():
        assert node.start()
        assert node.broker.controller.directory_id != before[node_id]
    old.sim.run_for(20_000)
    assert old.controller_id == 0
    old.end()
    old.rescue(1, 2, 3, wish=Wish(is_restored=True))
    old.start(1, 2, 3)
    old.wait(old.is_whole, within_ms=30_000)
    assert {node_id: node.broker.controller.directory_id for node_id, node in old.nodes.items()} == before
    assert old.values(1, "pond") == [b"a"]


def test_the_last_of_a_rescued_cluster_is_moved_to_another_disk(old: OldDisks) -> None:
    """Its log names the voters, and there is no other voter."""
    old.end(2, 3)
    old.rescue(1, wish=Wish(drops_lost=True))
    old.tell(1)
    assert old.nodes[1].start()
    old.write(1, "pond", b"b")
    old.nodes[1].kill()
    old.sim.roll_back("node1", old.nodes[1].disk.contents())
    assert old.nodes[1].start(), old.nodes[1].journal_lines[-3:]
    old.write(1, "pond", b"c")
    assert old.values(1, "pond") == [b"a", b"b", b"c"]


@with_time
def test_old_copies_come_back_among_other_faults() -> None:
    came_back = 0
    for seed in range(4):
        scenario, outcome = play(seed, make_plan(seed, ("old disk", "old disk", "kill of a leader"), nodes=3))
        assert not outcome.violations, f"seed {seed}: {outcome.violations}"
        came_back += any("gets an old copy" in line for line in scenario.history.lines)
    assert came_back


@pytest.mark.parametrize("names_voters", [False, True])
def test_a_running_copy_of_a_voters_folder_does_not_count_beside_the_original(names_voters: bool) -> None:
    """The controller and the copy commit nothing on their own: the two real voters would know nothing of it."""
    old = OldDisks()
    if names_voters:
        name_voters(old)
    controller_id = old.controller_id
    original, third = sorted(old.nodes.keys() - {controller_id})
    texts = {**old.nodes[original].texts, "listen": f"copy:{PORT}"}
    copy = SimNode(old.sim, "copy", texts)
    old.sim.host("copy").disk.roll_back(old.nodes[original].disk.contents())
    assert copy.start(), copy.journal_lines
    old.sim.run_for(20_000)
    assert any("the data folder is a copy" in line for line in copy.journal_lines)
    assert copy.broker.controller.host.is_new
    old.nodes[original].kill()
    old.nodes[third].kill()
    old.sim.run_for(20_000)
    assert copy.is_up, copy.journal_lines[-3:]
    assert not old.nodes[controller_id].broker.controller.is_active


@pytest.mark.parametrize("names_voters", [False, True])
def test_a_copied_folder_of_one_node_registers_and_votes_again(old: OldDisks, names_voters: bool) -> None:
    if names_voters:
        name_voters(old)
    before = old.nodes[2].broker.controller.directory_id
    old.nodes[2].kill()
    old.sim.roll_back("node2", old.nodes[2].disk.contents())
    assert old.nodes[2].start()
    new = old.nodes[2].broker.controller.directory_id
    assert new != before
    old.wait(lambda: not old.nodes[2].broker.controller.host.is_new and old.all_in_sync(), within_ms=60_000)
    assert old.image.brokers[2].directory_id == new
    # A node that is killed before this is on its disk starts as a new voter again.
    old.sim.run_for(100)
    old.nodes[2].kill()
    assert old.nodes[2].start()
    assert old.nodes[2].broker.controller.directory_id == new, "it is no copy any longer"
    old.nodes[3].kill()
    old.nodes[1].kill()
    assert old.nodes[1].start()
    old.wait(lambda: old.controller_id != 0, within_ms=30_000)
