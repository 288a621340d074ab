"""Disks that fail under a cluster: others lead, nothing damaged is spread, and the node heals by itself."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.broker.replication.partitions import Partition
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire.records import Record, encode_batch

LOG = "/pond-0/00000000000000000000.log"


class Disks(NodeCluster):
    def __init__(self) -> None:
        super().__init__()
        self.leader = self.other(self.controller_id)
        self.topic_id = self.create(self.leader).id
        self.wait(self.is_whole)

    def replica(self, node_id: int) -> Partition:
        partition = self.nodes[node_id].broker.partitions.by_id(self.topic_id, 0)
        assert partition is not None
        return partition

    def write(self, node_id: int, *values: bytes) -> Any:
        records = [Record(number, WALL_START_MS, b"k", value) for number, value in enumerate(values)]
        return self.replica(node_id).append(memoryview(bytearray(encode_batch(records))), zstd=True)

    def data(self, node_id: int) -> bytes:
        return self.replica(node_id).log.read_batches(0, 1 << 20)

    def in_step(self) -> bool:
        if not self.is_whole():
            return False
        partitions = [node.broker.partitions.by_id(self.topic_id, 0) for node in self.nodes.values()]
        logs = [each.log for each in partitions if each is not None]
        return (
            len(logs) == 3
            and all(log.failed is None for log in logs)
            and len({log.end_offset for log in logs}) == 1
            and len({log.read_batches(0, 1 << 20) for log in logs}) == 1
        )

    def said(self, node_id: int, words: str) -> bool:
        return any(words in line for line in self.nodes[node_id].journal_lines)


@pytest.fixture
def disks() -> Disks:
    return Disks()


def test_a_full_disk_lets_others_lead_until_there_is_room(disks: Disks) -> None:
    for number in range(5):
        disks.write(disks.leader, b"v%d" % number)
    disks.wait(disks.in_step)
    disk = disks.nodes[disks.leader].disk
    disk.fill()
    with pytest.raises(Exception, match="No space left"):
        disks.write(disks.leader, b"no room")
    disks.wait(lambda: disks.partition().leader not in (disks.leader, -1), within_ms=4_000)
    now = disks.partition().leader
    disks.wait(lambda: disks.replica(now).is_leader)
    disks.write(now, b"elsewhere")
    disks.sim.run_for(5_000)
    assert disks.replica(disks.leader).log.end_offset == 5, "there is still no room"
    disk.make_room()
    disks.wait(disks.in_step, within_ms=20_000)
    assert disks.replica(disks.leader).log.end_offset == 6


def test_a_leader_alone_in_sync_that_had_no_room_for_a_note_lets_others_catch_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It alone has the records: if its log were closed for that, no replica could rejoin the ISR."""
    cluster = NodeCluster()
    leader = cluster.other(cluster.controller_id)
    behind = cluster.other(cluster.controller_id, leader)
    cluster.create(leader, replicas=(leader, behind), min_isr="1")
    node = cluster.nodes[leader]
    cluster.nodes[behind].kill()
    cluster.wait(lambda: cluster.partition().isr == (leader,))
    replica = node.broker.partitions.get("pond", 0)
    assert replica is not None
    replica.append(memoryview(bytearray(encode_batch([Record(0, WALL_START_MS, b"k", b"v")]))), zstd=True)
    cluster.wait(lambda: replica.committed_offset == 1)
    refused: list[str] = []
    replace = node.disk.replace

    def no_room(path: str, data: bytes) -> None:
        if "/pond-0/" in path:
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(path, data)

    monkeypatch.setattr(node.disk, "replace", no_room)
    # It leads again, and has to note another epoch.
    node.kill()
    assert node.start()
    cluster.wait(lambda: bool(refused))
    monkeypatch.setattr(node.disk, "replace", replace)
    assert cluster.nodes[behind].start()
    cluster.wait(lambda: len(cluster.partition().isr) == 2)
    assert cluster.nodes[behind].broker.partitions.get("pond", 0).log.end_offset == 1


def test_a_sync_that_fails_at_the_leader_costs_it_the_leadership_and_a_copy(disks: Disks) -> None:
    for number in range(5):
        disks.write(disks.leader, b"v%d" % number)
    disks.wait(disks.in_step)
    disks.nodes[disks.leader].disk.fail_syncs(LOG)
    replica = disks.replica(disks.leader)
    disks.nodes[disks.leader].broker.flusher.force(replica.log).then(lambda _: None, lambda _: None)
    disks.wait(lambda: replica.log.failed is not None)
    disks.wait(lambda: disks.partition().leader not in (disks.leader, -1), within_ms=3_000)
    disks.wait(disks.in_step, within_ms=20_000)
    assert disks.said(disks.leader, "copying a failed replica")
    assert not disks.said(disks.leader, "lost records"), "what else it leads is not touched"
    assert disks.replica(disks.leader).log.end_offset == 5


def test_a_sync_that_fails_at_a_follower_costs_it_a_copy(disks: Disks) -> None:
    for number in range(5):
        disks.write(disks.leader, b"v%d" % number)
    disks.wait(disks.in_step)
    follower = disks.other(disks.leader, disks.controller_id)
    disks.nodes[follower].disk.fail_syncs(LOG)
    replica = disks.replica(follower)
    disks.nodes[follower].broker.flusher.force(replica.log).then(lambda _: None, lambda _: None)
    disks.wait(lambda: replica.log.failed is not None)
    disks.write(disks.leader, b"more")
    disks.wait(lambda: disks.said(follower, "copying a failed replica"), within_ms=40_000)
    disks.wait(disks.in_step, within_ms=20_000)
    assert disks.replica(follower).log.end_offset == 6


def test_a_leader_does_not_replicate_a_damaged_batch(disks: Disks) -> None:
    """A follower that comes back finds it, for it checks what it is sent."""
    for number in range(5):
        disks.write(disks.leader, b"v%d" % number)
    disks.wait(disks.in_step)
    behind = disks.other(disks.leader, disks.controller_id)
    disks.nodes[behind].kill()
    disks.wait(lambda: behind not in disks.partition().isr)
    written = disks.write(disks.leader, b"rotten" * 10)
    disks.wait(lambda: disks.replica(disks.leader).committed_offset == written.last_offset + 1)
    disk = disks.nodes[disks.leader].disk
    path = next(path for path in disk.contents() if path.endswith(LOG))
    disk.flip_bit(path, len(disk.contents()[path]) - 5)
    assert disks.nodes[behind].start()
    disks.wait(lambda: disks.partition().leader not in (disks.leader, -1), within_ms=20_000)
    disks.wait(disks.in_step, within_ms=30_000)
    assert disks.said(disks.leader, "a batch of this node is damaged")
    assert b"rotten" * 10 in disks.data(disks.leader)


def test_damage_that_recovery_finds_is_mended_by_the_leader(disks: Disks) -> None:
    for number in range(8):
        disks.write(disks.leader, b"value %d" % number)
    disks.wait(disks.in_step)
    follower = disks.other(disks.leader, disks.controller_id)
    disks.nodes[follower].kill()
    disk = disks.nodes[follower].disk
    path = next(path for path in disk.contents() if path.endswith(LOG))
    disk.flip_bit(path, len(disk.contents()[path]) // 2)
    assert disks.nodes[follower].start()
    disks.wait(lambda: follower not in disks.partition().isr)
    disks.wait(disks.in_step, within_ms=20_000)
    assert disks.replica(follower).log.end_offset == 8


@pytest.mark.parametrize("is_leader", [True, False])
def test_records_that_rot_after_everybody_has_them_are_found_and_mended(disks: Disks, is_leader: bool) -> None:
    for number in range(8):
        disks.write(disks.leader, b"value %d" % number)
    disks.wait(disks.in_step)
    whole = disks.data(disks.leader)
    rotten = disks.leader if is_leader else disks.other(disks.leader, disks.controller_id)
    disk = disks.nodes[rotten].disk
    path = next(path for path in disk.contents() if path.endswith(LOG))
    disk.flip_bit(path, len(disk.contents()[path]) // 2)
    assert not disks.in_step()
    disks.wait(disks.in_step, within_ms=60_000)
    assert disks.said(rotten, "a batch of this node is damaged")
    assert {disks.data(node_id) for node_id in disks.nodes} == {whole}
