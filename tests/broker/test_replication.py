"""Two brokers replicate one partition; the test hands out the metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from unittest.mock import patch
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.replication.partitions import Partition
from millpond.broker.replication.replica_manager import ReplicaManager
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from millpond.sim.clients.client import SimClient
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

A, B = 1, 2
POND = UUID(int=70)


class Pair:
    """Nodes whose images get the same records, as if from one controller."""

    def __init__(
        self, make_batch: Callable[..., memoryview], seed: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self.batch = make_batch
        self.sim = SimWorld(seed)
        self.nodes = {
            node_id: SimNode(self.sim, name, {"node.id": str(node_id), **(settings or {})})
            for node_id, name in ((A, "a"), (B, "b"))
        }
        self.told: list[Record] = []
        for node_id in self.nodes:
            self.start(node_id)

    def start(self, node_id: int) -> None:
        # Its own image, that of a standalone node, does not have the pond.
        with patch.object(ReplicaManager, "open_all", lambda _, **__: None):
            assert self.nodes[node_id].start(), self.nodes[node_id].journal_lines
        for other, node in self.nodes.items():
            self._hear(
                node_id,
                [
                    RegisterBrokerRecord(
                        other,
                        UUID(int=other),
                        5,
                        (BrokerEndpoint("PLAINTEXT", node.name, 9092),),
                        rack=node.name,
                        fenced=False,
                    )
                ],
            )
        self._hear(node_id, self.told)

    def tell(self, *records: Record) -> None:
        self.told += records
        for node_id, node in self.nodes.items():
            if node.is_up:
                self._hear(node_id, list(records))

    def _hear(self, node_id: int, records: list[Record]) -> None:
        broker = self.nodes[node_id].broker
        broker.lifecycle.broker_epoch = 5
        for record in records:
            broker.image.replay(record)
        broker._on_records(records).then(lambda _: None)

    def partition(self, node_id: int, index: int = 0) -> Partition:
        partition = self.nodes[node_id].broker.partitions.by_id(POND, index)
        assert partition is not None
        return partition

    def create(self, leader: int = A, partitions: int = 1) -> None:
        self.tell(
            TopicRecord("pond", POND),
            ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "1"),
            *(
                PartitionRecord(index, POND, (A, B), (A, B), leader=leader, leader_epoch=1)
                for index in range(partitions)
            ),
        )

    def lead(self, leader: int, isr: tuple[int, ...] = (A, B)) -> None:
        self.tell(PartitionChangeRecord(0, POND, isr=isr, leader=leader))

    def write(self, node_id: int, *values: bytes) -> None:
        self.partition(node_id).append(self.batch(*values), zstd=True)

    def data(self, node_id: int) -> bytes:
        log = self.partition(node_id).log
        return log.read_batches(log.start_offset, 1 << 24)

    def fetch(self, node_id: int, offset: int, rack: str = "b", **others: int) -> list[m.FetchResponse.PartitionData]:
        """The eventual response to a consumer of this node; the fetch waits as long as the test lets it."""
        answers: list[m.FetchResponse.PartitionData] = []
        partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = m.FetchRequest(
            max_wait_ms=300,
            min_bytes=1,
            topics=[m.FetchRequest.FetchTopic(topic="pond", partitions=[partition])],
            forgotten_topics_data=[],
            rack_id=rack,
            session_epoch=-1,
        )
        # Its metadata comes from the test, not from a controller.
        self.nodes[node_id].broker.dispatcher._knows_cluster = True
        client = SimClient(self.sim.network, self.nodes[node_id].name, 9092)
        version = others.get("version", 12)
        client.send(request, version, lambda reply: answers.append(reply.responses[0].partitions[0]))
        return answers

    def fetched(self, node_id: int, offset: int, rack: str = "b", **others: int) -> m.FetchResponse.PartitionData:
        answers = self.fetch(node_id, offset, rack, **others)
        assert self.sim.run_until(lambda: bool(answers), within_ms=2_000)
        return answers[0]

    def in_step(self, within_ms: int = 5_000) -> None:
        """Both have the same bytes, all committed."""

        def same() -> bool:
            ends = {(self.partition(each).log.end_offset, self.partition(each).committed_offset) for each in (A, B)}
            return len(ends) == 1 and len(set(next(iter(ends)))) == 1 and self.data(A) == self.data(B)

        assert self.sim.run_until(same, within_ms=within_ms), {
            each: (self.partition(each).log.end_offset, self.partition(each).committed_offset) for each in (A, B)
        }


@pytest.fixture
def pair(make_batch: Callable[..., memoryview]) -> Pair:
    return Pair(make_batch)


def test_what_the_leader_writes_the_follower_has(pair: Pair) -> None:
    pair.create()
    for number in range(20):
        pair.write(A, b"v%d" % number, b"w")
        pair.sim.run_for(7)
    pair.in_step()
    assert pair.partition(B).log.end_offset == 40


def test_a_record_is_committed_within_a_few_milliseconds_though_a_fetch_waits_for_many(pair: Pair) -> None:
    pair.create(partitions=3)
    pair.sim.run_for(3_000)
    pair.write(A, b"v")
    assert pair.partition(A).committed_offset == 0
    assert pair.sim.run_until(lambda: pair.partition(A).committed_offset == 1, within_ms=40)


def test_leadership_may_move_to_and_fro_while_both_write(pair: Pair) -> None:
    pair.create()
    for number, (_, leader) in enumerate(pairwise((A, A, B, A, B, B, A))):
        if number:
            pair.lead(leader)
        for _ in range(5):
            pair.write(leader, b"%d" % number)
            pair.sim.run_for(3)
    pair.in_step()
    # All but the last leader's records may have been written by a node that did not know yet that it no longer led.
    assert pair.partition(A).log.epochs.entries == pair.partition(B).log.epochs.entries


def test_a_new_leader_is_followed_at_once(pair: Pair) -> None:
    pair.create(leader=A, partitions=2)
    pair.sim.run_for(2_000)
    # Another partition keeps a fetch pending on each of them.
    pair.tell(PartitionChangeRecord(1, POND, leader=B))
    pair.sim.run_for(2_200)
    pair.lead(B)
    pair.write(B, b"v")
    began_ms = pair.sim.clock.now_ms
    assert pair.sim.run_until(lambda: pair.partition(B).committed_offset == 1, within_ms=2_000)
    assert pair.sim.clock.now_ms - began_ms < 60


def test_a_leader_that_lost_power_follows_and_forgets_what_only_it_had(pair: Pair) -> None:
    pair.create()
    for number in range(10):
        pair.write(A, b"v%d" % number)
    pair.in_step()
    pair.nodes[B].kill()
    for number in range(10):
        pair.write(A, b"lost %d" % number)
    pair.sim.run_for(100)
    pair.nodes[A].kill()
    pair.start(B)
    pair.lead(B, isr=(B,))
    for number in range(5):
        pair.write(B, b"won %d" % number)
    pair.start(A)
    pair.sim.run_for(1_000)
    assert pair.partition(A).log.end_offset == 15
    assert pair.data(A) == pair.data(B)
    assert any("replica truncated" in line for line in pair.nodes[A].journal_lines)
    pair.tell(PartitionChangeRecord(0, POND, isr=(A, B)))
    pair.in_step()


def test_who_was_away_for_too_long_begins_anew(pair: Pair) -> None:
    pair.create()
    pair.write(A, b"old")
    pair.in_step()
    pair.nodes[B].kill()
    pair.tell(PartitionChangeRecord(0, POND, isr=(A,)))
    for _ in range(5):
        pair.write(A, b"x", b"y", b"z")
    pair.partition(A).log.delete_before(9)
    pair.start(B)
    assert pair.sim.run_until(lambda: pair.partition(B).log.end_offset == 16, within_ms=5_000)
    assert pair.partition(B).log.start_offset == 9
    assert any("replica restarted empty" in line for line in pair.nodes[B].journal_lines)


def test_a_deleted_topic_is_gone_while_it_is_followed(pair: Pair) -> None:
    pair.create()
    pair.write(A, b"v")
    pair.in_step()
    pair.write(A, b"w")
    pair.tell(RemoveTopicRecord(POND))
    pair.sim.run_for(2_000)
    assert all(POND not in {each.topic_id for each in node.broker.partitions} for node in pair.nodes.values())
    assert not any("does not follow" in line for line in pair.nodes[B].journal_lines)


def test_bit_rot_at_the_follower_is_not_spread(pair: Pair) -> None:
    """The follower checks its own log when it is opened after a crash, and truncates it where it is damaged."""
    pair.create()
    for number in range(10):
        pair.write(A, b"v%d" % number)
    pair.in_step()
    pair.nodes[B].kill()
    path = "/var/pond/pond-0/00000000000000000000.log"
    disk = pair.nodes[B].disk
    data = bytearray(disk.read(path))
    data[len(data) // 2] ^= 1
    disk.replace(path, bytes(data))
    pair.start(B)
    pair.in_step()


# A producer without producer state: the batch that is rejected first must be written first.


def send(pair: Pair, sequence: int, **fields: int) -> str:
    records = pair.batch(b"v%d" % sequence, producer_id=9, producer_epoch=0, base_sequence=sequence)
    try:
        pair.partition(A).append(records, zstd=True, **fields)  # type: ignore[arg-type]
    except Refused as refusal:
        return refusal.code.name
    return "written"


def written_in_order(pair: Pair, refusal: str) -> None:
    assert send(pair, 1) == refusal
    assert [send(pair, 0), send(pair, 1)] == ["written", "written"]


def test_no_batch_overtakes_one_that_came_before_its_leader_led(pair: Pair) -> None:
    pair.create(leader=B)
    assert send(pair, 0) == "NOT_LEADER_OR_FOLLOWER"
    pair.lead(A)
    written_in_order(pair, "NOT_LEADER_OR_FOLLOWER")


def test_no_batch_overtakes_one_that_came_while_too_few_were_in_sync(pair: Pair) -> None:
    pair.create()
    pair.tell(
        ConfigRecord(ResourceType.TOPIC, "pond", "min.insync.replicas", "2"),
        PartitionChangeRecord(0, POND, isr=(A,)),
    )
    assert send(pair, 0, acks_all=True) == "NOT_ENOUGH_REPLICAS"
    pair.tell(PartitionChangeRecord(0, POND, isr=(A, B)))
    written_in_order(pair, "NOT_ENOUGH_REPLICAS")


@pytest.mark.parametrize("topic", ["pond", POND])
def test_no_batch_overtakes_one_that_came_before_its_partition(pair: Pair, topic: str | UUID) -> None:
    first = pair.batch(b"v0", producer_id=9, producer_epoch=0, base_sequence=0)
    pair.nodes[A].broker.partitions.unopened_refusals.note(topic, 0, first)
    pair.create()
    written_in_order(pair, "OUT_OF_ORDER_SEQUENCE_NUMBER")


# Rack-aware consumers.


def test_a_consumer_is_sent_to_the_replica_in_its_rack(pair: Pair) -> None:
    pair.create()
    pair.write(A, b"one", b"two")
    pair.in_step()
    sent = pair.fetched(A, 1)
    assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records or b"")) == (0, B, b"")
    near = pair.fetched(B, 1)
    assert (near.preferred_read_replica, near.high_watermark, near.last_stable_offset) == (-1, 2, 2)
    assert bytes(near.records or b"") == pair.data(A)
    for rack in ("a", "nowhere", ""):
        here = pair.fetched(A, 1, rack)
        assert (here.preferred_read_replica, bytes(here.records or b"")) == (-1, pair.data(A)), rack
    # Before version 11 the request has no rack.
    assert pair.fetched(A, 1, version=10).preferred_read_replica == -1
    assert pair.fetched(A, 9).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_shows_what_it_knows_to_be_committed_and_sends_everybody_else_to_the_leader(pair: Pair) -> None:
    pair.create()
    pair.write(A, b"one", b"two")
    pair.in_step()
    assert pair.fetched(B, 1, "").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.fetched(B, 3).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    with patch.object(Partition, "follow_high_watermark", lambda *_: None):
        pair.write(A, b"three")
        pair.sim.run_for(50)
        assert pair.partition(B).log.end_offset == 3
        behind = pair.fetched(B, 2)
        assert (behind.error_code, behind.high_watermark, bytes(behind.records or b"")) == (0, 2, b"")
    # Each node applies retention by its own clock: the leader may still have what is deleted here.
    pair.partition(B).log.delete_before(1)
    assert pair.fetched(B, 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    pair.lead(A, isr=(A,))
    assert pair.fetched(B, 1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert pair.fetched(A, 1).preferred_read_replica == -1, "it is not in sync"


def test_a_consumer_that_waits_at_a_follower_hears_at_once_what_is_committed(pair: Pair) -> None:
    pair.create()
    pair.write(A, b"one")
    pair.in_step()
    assert pair.fetched(A, 1).preferred_read_replica == B
    waiting = pair.fetch(B, 1)
    pair.sim.run_for(100)
    assert waiting == []
    pair.write(A, b"two")
    pair.sim.run_for(150)
    assert [answer.high_watermark for answer in waiting] == [2], "not when the follower's next fetch is due"


def test_where_racks_do_not_count_everybody_reads_from_leaders(make_batch: Callable[..., memoryview]) -> None:
    pair = Pair(make_batch, settings={"replica.selector.class": ""})
    pair.create()
    pair.write(A, b"one")
    pair.in_step()
    assert pair.fetched(A, 0).preferred_read_replica == -1
    assert pair.fetched(B, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_learns_at_once_where_the_log_begins_after_retention(pair: Pair) -> None:
    """No more records are written, and without this the follower could not join the ISR."""
    pair.create()
    pair.write(A, b"old")
    pair.in_step()
    log = pair.partition(A).log
    log.roll()
    pair.write(A, b"new")
    pair.sim.run_for(100)
    pair.tell(ConfigRecord(ResourceType.TOPIC, "pond", "retention.bytes", "1"))
    pair.sim.run_for(100)
    pair.nodes[A].broker.housekeeping.retain()
    assert pair.sim.run_until(lambda: pair.partition(B).log.start_offset == 1, within_ms=300)
    assert log.start_offset == 1
