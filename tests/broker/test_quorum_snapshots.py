"""Snapshots bound the metadata log: they are taken, loaded, and sent to nodes that are too far behind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.broker.test_controller import ControllerHost
from tests.broker.test_quorum_host import Quorum

from millpond.base.errors import MalformedMessage
from millpond.broker.data_folder.identity import CannotStart
from millpond.broker.quorum.snapshot_keeper import image_of
from millpond.broker.quorum.snapshots import KEPT, SnapshotFiles, encode_snapshot
from millpond.metadata.partition import METADATA_PARTITION
from millpond.metadata.snapshot import records_of
from millpond.quorum.messages import SnapshotId
from millpond.sim.node import DATA_FOLDER, SimNode
from millpond.sim.world.world import SimWorld

FOLDER = METADATA_PARTITION.folder
OFTEN = {"metadata.log.max.record.bytes.between.snapshots": "1500"}


def files(node: Any, folder: str) -> list[str]:
    return [name for name in node.disk.list(f"{folder}/{FOLDER}") if name.endswith(".checkpoint")]


def fill(host: ControllerHost, count: int) -> list[str]:
    """Create topics and delete half of them, a moment apart."""
    for number in range(count):
        host.create(f"topic-{number}")
        if number % 2:
            host.delete(f"topic-{number}")
        host.settle()
    return [f"topic-{number}" for number in range(0, count, 2)]


@pytest.fixture
def host() -> ControllerHost:
    return ControllerHost()


def test_the_log_is_cut_behind_snapshots_and_nothing_is_lost(host: ControllerHost) -> None:
    host.start(OFTEN)
    wanted = fill(host, 40)
    log = host.controller.log
    assert len(files(host.world, "data")) == KEPT
    assert 0 < log.start_offset < host.controller.applied_offset
    assert log.size_bytes < 3 * 1500 + 3000
    before = host.controller.image.copy()
    host.restart(OFTEN)
    assert host.topics() == wanted
    assert host.controller.image.configs == before.configs
    assert host.controller.image.next_producer_id == before.next_producer_id


def test_time_alone_makes_a_snapshot_of_what_changed(host: ControllerHost) -> None:
    host.start({"metadata.log.max.snapshot.interval.ms": "5000"})
    fill(host, 1)
    assert files(host.world, "data") == []
    host.sim.run_for(5_000)
    host.create("late")
    host.settle()
    assert len(files(host.world, "data")) == 1


def test_a_damaged_snapshot_is_passed_over_while_the_log_has_what_it_had(host: ControllerHost) -> None:
    host.start(OFTEN)
    wanted = fill(host, 40)
    host.store.close()
    host.sim.kill("a")
    older, newest = files(host.world, "data")
    disk = host.sim.hosts["a"].disk
    disk.replace(f"data/{FOLDER}/{newest}", disk.read(f"data/{FOLDER}/{newest}")[:-5])
    host.start(OFTEN)
    assert host.topics() == wanted
    host.store.close()
    host.sim.kill("a")
    disk.replace(f"data/{FOLDER}/{older}", b"")
    disk.replace(f"data/{FOLDER}/{newest}", b"")
    with pytest.raises(CannotStart, match="cannot be read"):
        host.start(OFTEN)


def test_a_log_whose_beginning_is_lost_is_not_taken_for_whole(host: ControllerHost) -> None:
    host.start(OFTEN)
    fill(host, 40)
    host.store.close()
    host.sim.kill("a")
    for name in files(host.world, "data"):
        host.sim.hosts["a"].disk.remove(f"data/{FOLDER}/{name}")
    with pytest.raises(CannotStart, match="no snapshot ends there"):
        host.start(OFTEN)


def test_a_log_that_cannot_be_read_for_a_moment_is_cut_back_by_the_next_try(host: ControllerHost) -> None:
    host.start()
    fill(host, 4)
    # Recent records are cached; after a restart they must be read from disk.
    host.restart()
    log = host.controller.host.log
    before = log.log.end_offset
    log.truncate_to(4)
    host.sim.hosts["a"].disk.fail_reads(FOLDER)
    ends: list[object] = []
    log.persist().then(ends.append, ends.append)
    host.settle()
    assert isinstance(ends.pop(), OSError)
    assert log.log.end_offset == before
    log.persist().then(ends.append, ends.append)
    host.settle()
    assert (ends, log.log.end_offset < before) == ([None], True)


def test_a_cut_waits_for_workers_that_have_files_of_the_log_in_hand(host: ControllerHost) -> None:
    host.start()
    fill(host, 4)
    log = host.controller.host.log
    before = log.log.end_offset
    log.log.durability.away.others += 1
    log.truncate_to(4)
    ends: list[object] = []
    log.persist().then(ends.append, ends.append)
    # The longest time a disk may hang.
    host.sim.run_for(20_000)
    assert (ends, log.log.end_offset) == ([], before)
    log.log.durability.away.others -= 1
    assert host.sim.run_until(lambda: bool(ends))
    assert (ends, log.log.end_offset < before) == ([None], True)


def test_a_snapshot_that_is_not_whole_is_noticed(host: ControllerHost) -> None:
    host.start()
    data = encode_snapshot(records_of(host.controller.image), 0)
    assert image_of(data) == host.controller.image
    for cut in (len(data) - 1, len(data) - 80, 0):
        with pytest.raises(MalformedMessage):
            image_of(data[:cut])


def test_whatever_moment_the_power_goes_a_snapshot_loses_nothing() -> None:
    """Cut the power at each disk operation while snapshots are taken and the log before them is deleted."""
    for cut in range(1, 2000, 7):
        host = ControllerHost(seed=cut)
        host.start(OFTEN)
        disk = host.world.disk
        disk.crash_at_operation(disk.operations + cut)
        for number in range(40):
            if host.sim.power_cuts:
                break
            host.sim.clock.call_later(1, partial(host.create, f"topic-{number}"))
            host.sim.run_for(50)
        answered = [line.split()[1][:-1] for line in host.heard if line.endswith(": NONE")]
        if not host.sim.power_cuts:
            assert len(files(host.world, "data")) == KEPT
            return
        host.start(OFTEN, after_crash=True)
        assert set(answered) <= set(host.topics()), f"seed and cut {cut}"
        fill(host, 1)
        host.store.close()
        host.sim.kill("a")
    pytest.fail("the power was never left on")


# Between nodes.


class FoldingQuorum(Quorum):
    """A quorum whose nodes take snapshots all the time."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        for node in self.nodes:
            node.texts.update(OFTEN)


def test_a_node_that_was_away_for_long_begins_with_a_snapshot() -> None:
    quorum = FoldingQuorum().start()
    quorum.write()
    away = next(node for node in quorum.nodes if not node.broker.controller.is_active)
    replies: list[Any] = []
    away.kill()
    for _ in range(60):
        quorum.write()
    assert quorum.leader().broker.controller.log.start_offset > 0
    assert away.start(), away.journal_lines
    away.broker.controller.observers.on_change(lambda records: replies.extend(records) or _done())
    end = away.broker.controller.applied_offset
    quorum.until(quorum.has_settled)
    assert any(getattr(each, "name", None) == "test" for each in replies), "observers hear what changed"
    assert away.broker.controller.log.start_offset > end
    quorum.write()


def test_a_power_cut_while_a_snapshot_comes_in_is_survived() -> None:
    for cut in range(1, 400, 9):
        quorum = FoldingQuorum(cut).start()
        away = next(node for node in quorum.nodes if not node.broker.controller.is_active)
        away.kill()
        for _ in range(30):
            quorum.write()
        assert away.start(), away.journal_lines
        away.disk.crash_at_operation(away.disk.operations + cut)
        for _ in range(40):
            quorum.sim.run_for(50)
            if not away.is_up:
                break
        was_cut = not away.is_up
        if was_cut:
            assert away.start(), (cut, away.journal_lines)
        else:
            away.disk.crash_at_operation(None)
        quorum.write()
        if not was_cut:
            return


def _done() -> Any:
    from millpond.base.later import done

    return done(None)


def test_snapshots_are_listed_in_order_and_forgotten_by_offset() -> None:
    node = SimNode(SimWorld(0))
    assert node.start()
    folder = f"{DATA_FOLDER}/{FOLDER}"
    snapshots = SnapshotFiles(node.disk, folder)
    for end in (7, 100, 30):
        snapshots.write(SnapshotId(end, 2), b"x" * end)
        snapshots.add(SnapshotId(end, 2))
    assert [each.end_offset for each in SnapshotFiles(node.disk, folder).ids] == [7, 30, 100]
    assert snapshots.size(SnapshotId(30, 2)) == 30
    assert snapshots.size(SnapshotId(30, 3)) is None
    assert snapshots.drop_before(100) == [snapshots.path(SnapshotId(7, 2)), snapshots.path(SnapshotId(30, 2))]
    assert snapshots.ids == [SnapshotId(100, 2)]
