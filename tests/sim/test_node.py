"""A whole node in the simulator: what each kind of ending leaves behind."""

from __future__ import annotations

import pytest

from millpond.sim.history.records import Content, Promise, Status


class Play:
    """A one_node, and a producer that writes to it."""

    def __init__(self, one_node) -> None:
        self.one_node, self.sim, self.node, self.history = one_node, one_node.sim, one_node.node, one_node.history
        self.partition = one_node.partitions[0]
        self.producer = one_node.producer()

    def write(self, count: int) -> None:
        for content in self.one_node.contents(count):
            self.producer.produce(self.partition, [content], Promise.SURVIVES)
        assert self.sim.run_until(self.producer.is_idle)

    def end_offset(self) -> int:
        partition = self.node.broker.partitions.get("t", 0)
        assert partition is not None
        return partition.log.end_offset


@pytest.fixture
def play(one_node) -> Play:
    return Play(one_node)


@pytest.mark.parametrize("ending", ["crash", "kill"])
def test_what_was_acknowledged_outlives_a_crash_and_a_kill(play: Play, ending: str) -> None:
    play.write(20)
    assert play.history.counts()["acknowledged"] == 20
    getattr(play.node, ending)()
    assert not play.node.is_up
    assert play.node.start()
    assert play.end_offset() == 20


def test_a_stopped_node_leaves_the_marker_of_a_clean_end(play: Play) -> None:
    play.write(5)
    play.node.stop()
    assert play.sim.run_until(lambda: not play.node.is_up)
    assert "/var/pond/.kafka_cleanshutdown" in play.node.disk.contents()
    assert play.node.start()
    assert play.end_offset() == 5


def test_a_killed_node_leaves_no_marker(play: Play) -> None:
    play.write(5)
    play.node.kill()
    assert "/var/pond/.kafka_cleanshutdown" not in play.node.disk.contents()


def test_a_power_cut_in_the_middle_of_an_operation_ends_the_node(play: Play) -> None:
    play.node.disk.crash_at_operation(play.node.disk.operations + 3)
    content = Content("tag", None, b"value", play.sim.clock.wall_ms())
    batch = play.producer.produce(play.partition, [content], Promise.SURVIVES)
    assert play.sim.run_until(lambda: not play.node.is_up)
    assert batch.status is Status.OPEN
    assert play.sim.power_cuts == ["node"]
    assert play.node.start()
    assert play.sim.run_until(lambda: batch.status is Status.ACKNOWLEDGED)


def test_power_that_goes_while_starting(play: Play) -> None:
    play.node.crash()
    play.node.disk.crash_at_operation(play.node.disk.operations + 2)
    assert not play.node.start()
    assert not play.node.is_up
    assert play.node.start()


def test_a_node_that_cannot_write_does_not_start_and_says_why(play: Play) -> None:
    play.node.kill()
    play.node.disk.fail_syncs()
    assert not play.node.start()
    assert "cannot start" in play.node.journal_lines[-1]
    play.node.disk.heal()
    assert play.node.start()


def test_each_life_begins_a_new_leader_epoch_after_a_crash(play: Play) -> None:
    def epoch() -> int:
        partition = play.node.broker.partitions.get("t", 0)
        assert partition is not None
        return partition.leader_epoch

    before = epoch()
    play.node.restart()
    assert epoch() == before + 1
