"""A replica of a compacted topic returns after its leader has dropped tombstones and transaction markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.broker.test_replication import POND, A, B, Pair

from millpond.broker.replication import fetchers
from millpond.broker.replication.fetchers import OUTDATED
from millpond.broker.replication.leader_role import LeaderRole
from millpond.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    ResourceType,
)
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch

RETENTION_MS = 1_000
LAG_MS = 30_000
PRODUCER = 9


class Compacted(Pair):
    """A compacted topic that keeps tombstones for one second. The test rolls and compacts segments."""

    def __init__(self, make_batch: Callable[..., memoryview]) -> None:
        super().__init__(make_batch, settings={"log.cleaner.enable": "false"})
        self.create()
        self.tell(
            ConfigRecord(ResourceType.TOPIC, "pond", "cleanup.policy", "compact"),
            ConfigRecord(ResourceType.TOPIC, "pond", "min.cleanable.dirty.ratio", "0"),
            ConfigRecord(ResourceType.TOPIC, "pond", "delete.retention.ms", str(RETENTION_MS)),
        )
        self.sim.run_for(10)

    def put(self, node_id: int, key: bytes, value: bytes | None, *, sequence: int | None = None) -> None:
        """Append one record; with a sequence it is part of a transaction."""
        partition = self.partition(node_id)
        record = Record(0, self.sim.clock.wall_ms(), key, value)
        if sequence is None:
            partition.append(memoryview(bytearray(encode_batch([record]))), zstd=True)
            return
        batch = encode_batch(
            [record], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        producers = partition.log.producers
        verification = producers.verification("t", PRODUCER, 0, sequence, self.sim.clock.wall_ms())
        producers.permit(verification)
        partition.append(memoryview(bytearray(batch)), zstd=True, verification=verification)

    def end_transaction(self, node_id: int, *, committed: bool) -> None:
        self.partition(node_id).append_marker(PRODUCER, 0, committed, 1, 0)

    def compact(self, node_id: int) -> None:
        """Compact the sealed segments: records go first, then their markers get a horizon, then all evidence goes."""
        log, housekeeping = self.partition(node_id).log, self.nodes[node_id].broker.housekeeping
        assert self.sim.run_until(lambda: self.partition(node_id).is_committed, within_ms=1_000)
        log.roll()
        self.nodes[node_id].broker.flusher.after_sync(log, log.end_offset, None)
        self.sim.run_for(100)
        for _ in range(3):
            log.compaction.clean_offset = log.start_offset
            plan = housekeeping._plan_compaction(self.partition(node_id), self.sim.clock.wall_ms())
            assert plan is not None
            plan.run()
            log.finish_compaction(plan)
            self.sim.run_for(RETENTION_MS + 1)

    def data(self, node_id: int) -> bytes:
        log = self.partition(node_id).log
        starts = [max(each.base_offset, log.start_offset) for each in log.segments if each.size]
        return b"".join(log.read_batches(start, 1 << 24) for start in starts)

    def leave(self) -> None:
        """B dies, is fenced, and leaves the ISR."""
        self.in_step()
        self.nodes[B].kill()
        self.tell(BrokerRegistrationChangeRecord(B, 5, fenced=1), PartitionChangeRecord(0, POND, isr=(A,)))

    def come_back(self) -> None:
        """B returns and catches up."""
        self.start(B)
        self.tell(BrokerRegistrationChangeRecord(B, 5, fenced=-1))
        self.catch_up()

    def catch_up(self) -> None:
        assert self.sim.run_until(
            lambda: self.partition(B).log.end_offset == self.partition(A).log.end_offset, within_ms=5_000
        )

    def table(self, node_id: int) -> dict[bytes | None, bytes]:
        """The latest value of each key that has one."""
        rows: dict[bytes | None, bytes | None] = {}
        data = self.data(node_id)
        for position, header in walk(data):
            if not header.is_control:
                rows.update({each.key: each.value for each in decode_batch(data, position)})
        return {key: value for key, value in rows.items() if value is not None}

    def starts_over(self) -> int:
        return sum(OUTDATED in line for line in self.nodes[B].journal_lines)


@pytest.fixture
def pair(make_batch: Callable[..., memoryview]) -> Compacted:
    return Compacted(make_batch)


def test_a_deleted_key_does_not_return_with_a_replica_that_missed_its_tombstone(pair: Compacted) -> None:
    pair.put(A, b"kept", b"1")
    pair.put(A, b"gone", b"1")
    pair.leave()
    pair.put(A, b"gone", None)
    pair.put(A, b"other", b"1")
    pair.compact(A)
    assert pair.data(A).count(b"gone") == 0
    pair.put(A, b"last", b"1")
    pair.come_back()
    assert pair.table(B) == pair.table(A) == {b"kept": b"1", b"other": b"1", b"last": b"1"}
    assert pair.starts_over() == 1
    assert pair.partition(B).log.evidence_floor == pair.partition(A).log.evidence_floor == 3


@pytest.mark.parametrize("committed", [True, False])
def test_no_transaction_stays_open_in_a_replica_that_missed_its_marker(pair: Compacted, committed: bool) -> None:
    pair.put(A, b"key", b"in a transaction", sequence=0)
    pair.leave()
    pair.end_transaction(A, committed=committed)
    pair.put(A, b"key", b"later")
    # The producer has been idle long enough that its last batch need not be retained for it.
    pair.partition(A).log.producers.entries.clear()
    pair.compact(A)
    assert not any(header.producer_id == PRODUCER for _, header in walk(pair.data(A)))
    pair.come_back()
    log = pair.partition(B).log
    assert log.last_stable_offset == log.end_offset
    assert pair.data(B) == pair.data(A)


def test_a_short_absence_costs_no_copy(pair: Compacted) -> None:
    """The evidence is still in the log, so it is replicated."""
    pair.put(A, b"gone", b"1")
    pair.leave()
    pair.put(A, b"gone", None)
    pair.come_back()
    pair.tell(PartitionChangeRecord(0, POND, isr=(A, B)))
    pair.in_step()
    pair.compact(A)
    pair.put(A, b"last", b"1")
    pair.catch_up()
    assert pair.table(B) == {b"last": b"1"}
    assert pair.starts_over() == 0


def test_a_copy_that_is_cut_short_by_a_restart_starts_over(pair: Compacted) -> None:
    pair.put(A, b"gone", b"1")
    pair.leave()
    for number in range(10):
        pair.put(A, b"key %d" % number, b"1" * 100)
    pair.put(A, b"gone", None)
    pair.compact(A)
    pair.start(B)
    assert pair.sim.run_until(lambda: pair.partition(B).log.end_offset == 0, within_ms=5_000)
    pair.catch_up()
    log = pair.partition(B).log
    # As if the node was killed halfway: its log ends below the floor that it has inherited.
    truncation = log.begin_truncation(5)
    truncation.run()
    log.finish_truncation(truncation)
    pair.nodes[B].broker.lifecycle.broker_epoch = 6
    pair.nodes[B].kill()
    pair.come_back()
    assert pair.table(B) == pair.table(A)
    assert pair.data(B) == pair.data(A)


def test_a_copy_passes_the_floor_on(pair: Compacted) -> None:
    """B has copied a log that lacks tombstones. As leader, it does not let A resume below them either."""
    pair.put(A, b"gone", b"1")
    pair.leave()
    pair.put(A, b"gone", None)
    pair.compact(A)
    pair.put(A, b"last", b"1")
    pair.come_back()
    floor = pair.partition(A).log.evidence_floor
    pair.nodes[B].kill()
    pair.start(B)
    assert pair.partition(B).log.evidence_floor == floor > 1
    pair.lead(B, isr=(B,))
    leader_role = pair.partition(B).leader_role
    assert leader_role is not None
    assert leader_role.must_start_over(A, 5, 1, 0, 0)
    assert not leader_role.must_start_over(A, 5, floor, 0, 0)


def test_a_follower_that_is_copying_keeps_the_evidence_it_has_yet_to_copy(pair: Compacted) -> None:
    pair.put(A, b"gone", b"1")
    pair.in_step()
    pair.put(A, b"gone", None)
    leader_role = pair.partition(A).leader_role
    assert leader_role is not None
    leader_role.on_fetch(B, 5, 1, 0)
    pair.nodes[B].kill()
    assert leader_role.evidence_upto == 1
    pair.sim.run_for(LAG_MS + 1)
    assert leader_role.evidence_upto == pair.partition(A).log.end_offset


def test_a_member_of_the_isr_never_starts_over(pair: Compacted) -> None:
    """The floor of a log that an unclean election truncated may be above its end."""
    pair.put(A, b"key", b"1")
    pair.put(A, b"key", b"2")
    pair.in_step()
    pair.partition(A).log.compaction.inherit_floor(100)
    leader_role = pair.partition(A).leader_role
    assert leader_role is not None
    assert not leader_role.must_start_over(B, 5, 2, 0, 0)
    pair.tell(PartitionChangeRecord(0, POND, isr=(A,)))
    assert leader_role.must_start_over(B, 5, 2, 0, 0)


@pytest.mark.parametrize("start_offset", [0, 1])
def test_a_follower_that_does_not_know_floors_starts_over_too(
    pair: Compacted, monkeypatch: pytest.MonkeyPatch, start_offset: int
) -> None:
    """During an upgrade such a follower takes the answer for a divergence at offset 0."""
    real = fetchers._fetched
    monkeypatch.setattr(fetchers, "_fetched", lambda reply: replace(real(reply), evidence_floor=-1))
    for number in range(3):
        pair.put(A, b"key %d" % number, b"1")
    pair.put(A, b"gone", b"1")
    pair.leave()
    pair.partition(A).log.delete_before(start_offset)
    pair.put(A, b"gone", None)
    pair.compact(A)
    pair.put(A, b"last", b"1")
    pair.come_back()
    pair.sim.run_for(1_000)
    assert pair.table(B) == pair.table(A)
    assert b"gone" not in pair.table(A)


def test_without_the_floor_a_deleted_key_would_return(pair: Compacted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the first test."""
    monkeypatch.setattr(LeaderRole, "must_start_over", lambda *_: False)
    pair.put(A, b"gone", b"1")
    pair.leave()
    pair.put(A, b"gone", None)
    pair.compact(A)
    pair.put(A, b"last", b"1")
    pair.come_back()
    assert pair.table(B) == {b"gone": b"1", b"last": b"1"}


def test_a_follower_that_was_emptied_and_missed_a_marker_starts_over(pair: Compacted) -> None:
    """Its log is as empty as a new follower's, but its producer state still has the transaction."""
    pair.put(A, b"key", b"in a transaction", sequence=0)
    pair.in_step()
    pair.partition(A).log.delete_before(pair.partition(A).log.end_offset)
    pair.partition(A).tell_start()
    pair.sim.run_for(8_000)
    assert pair.partition(B).log.start_offset == pair.partition(B).log.end_offset
    pair.nodes[B].kill()
    pair.tell(BrokerRegistrationChangeRecord(B, 5, fenced=1), PartitionChangeRecord(0, POND, isr=(A,)))
    pair.end_transaction(A, committed=False)
    pair.put(A, b"key", b"later")
    pair.partition(A).log.producers.entries.clear()
    pair.compact(A)
    pair.put(A, b"last", b"1")
    pair.come_back()
    pair.sim.run_for(2_000)
    assert pair.partition(B).log.last_stable_offset == pair.partition(A).log.last_stable_offset
    assert pair.starts_over()


def test_what_was_committed_is_kept_where_an_unclean_leader_has_a_floor(pair: Compacted) -> None:
    """A real divergence is truncated first, which keeps the batches; only then does the replica start over."""
    pair.put(A, b"kept", b"1")
    pair.put(A, b"gone", b"1")
    pair.in_step()
    pair.nodes[B].kill()
    pair.tell(BrokerRegistrationChangeRecord(B, 5, fenced=1), PartitionChangeRecord(0, POND, isr=(A,)))
    for number in range(4):
        pair.put(A, b"only here %d" % number, b"committed")
    pair.sim.run_for(8_000)
    pair.nodes[A].stop()
    pair.sim.run_for(1_000)
    pair.start(B)
    pair.tell(
        BrokerRegistrationChangeRecord(B, 5, fenced=-1),
        BrokerRegistrationChangeRecord(A, 5, fenced=1),
        PartitionChangeRecord(0, POND, isr=(B,), leader=B),
    )
    pair.sim.run_for(100)
    for number in range(6):
        pair.put(B, b"new %d" % number, b"1")
    pair.put(B, b"gone", None)
    pair.put(B, b"x", b"1")
    pair.compact(B)
    pair.put(B, b"last", b"1")
    assert pair.partition(B).log.evidence_floor > 1
    pair.start(A)
    pair.tell(BrokerRegistrationChangeRecord(A, 5, fenced=-1))
    pair.sim.run_for(3_000)
    assert pair.partition(A).log.evidence_floor == pair.partition(B).log.evidence_floor, (
        "it was copied from the start"
    )
    assert any(b"only here" in content for content in pair.nodes[A].disk.contents().values())


def test_an_eligible_replica_never_starts_over(pair: Compacted) -> None:
    pair.put(A, b"key", b"1")
    pair.in_step()
    pair.partition(A).log.compaction.inherit_floor(100)
    leader_role = pair.partition(A).leader_role
    assert leader_role is not None
    pair.tell(PartitionChangeRecord(0, POND, isr=(A,), eligible_leader_replicas=(B,)))
    assert not leader_role.must_start_over(B, 5, 1, 0, 0)
