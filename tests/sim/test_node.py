"""A whole node in the simulator: what each kind of ending leaves behind."""

from __future__ import annotations

import pytest

from millpond.sim.history.records import Content, Promise, Status


class WrittenNode:
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
def written(one_node) -> WrittenNode:
    return WrittenNode(one_node)


@pytest.mark.parametrize("ending", ["crash", "kill"])
def test_acknowledged_records_survive_a_crash_and_a_kill(written: WrittenNode, ending: str) -> None:
    written.write(20)
    assert written.history.counts()["acknowledged"] == 20
    getattr(written.node, ending)()
    assert not written.node.is_up
    assert written.node.start()
    assert written.end_offset() == 20


def test_a_stopped_node_leaves_the_marker_of_a_clean_end(written: WrittenNode) -> None:
    written.write(5)
    written.node.stop()
    assert written.sim.run_until(lambda: not written.node.is_up)
    assert "/var/pond/.kafka_cleanshutdown" in written.node.disk.contents()
    assert written.node.start()
    assert written.end_offset() == 5


def test_a_killed_node_leaves_no_marker(written: WrittenNode) -> None:
    written.write(5)
    written.node.kill()
    assert "/var/pond/.kafka_cleanshutdown" not in written.node.disk.contents()


def test_a_power_cut_in_the_middle_of_an_operation_ends_the_node(written: WrittenNode) -> None:
    written.node.disk.crash_at_operation(written.node.disk.operations + 3)
    content = Content("tag", None, b"value", written.sim.clock.wall_ms())
    batch = written.producer.produce(written.partition, [content], Promise.SURVIVES)
    assert written.sim.run_until(lambda: not written.node.is_up)
    assert batch.status is Status.OPEN
    assert written.sim.power_cuts == ["node"]
    assert written.node.start()
    assert written.sim.run_until(lambda: batch.status is Status.ACKNOWLEDGED)


def test_a_power_cut_during_the_start(written: WrittenNode) -> None:
    written.node.crash()
    written.node.disk.crash_at_operation(written.node.disk.operations + 2)
    assert not written.node.start()
    assert not written.node.is_up
    assert written.node.start()


def test_a_node_that_cannot_write_does_not_start_and_says_why(written: WrittenNode) -> None:
    written.node.kill()
    written.node.disk.fail_syncs()
    assert not written.node.start()
    assert "cannot start" in written.node.journal_lines[-1]
    written.node.disk.heal()
    assert written.node.start()


def test_a_restart_after_a_crash_begins_a_new_leader_epoch(written: WrittenNode) -> None:
    def epoch() -> int:
        partition = written.node.broker.partitions.get("t", 0)
        assert partition is not None
        return partition.leader_epoch

    before = epoch()
    written.node.restart()
    assert epoch() == before + 1
