"""Invariants of the quorum, checked after every event of every replica."""

from __future__ import annotations

from millpond.quorum.messages import ReplicaKey, Vote, VoteResponse
from millpond.quorum.replica import Replica
from millpond.sim.machines.memory_log import Entry, MemoryLog
from millpond.sim.machines.run import Violation

TWO_LEADERS = "two leaders in one epoch"
TWO_VOTES = "two votes in one epoch"
COMMITTED_CHANGED = "a committed record changed"
SAME_NAME_OTHER_RECORD = "one offset in one epoch is two records"
ACKNOWLEDGED_LOST = "an acknowledged record is lost"
HIGH_WATERMARK_FELL = "the high watermark fell"
EPOCH_FELL = "a replica's epoch fell"
COMMITTED_BEYOND_LOG = "a replica calls committed what it does not have"
CUT_OFF_LEADER = "a leader goes on without a majority"


class Checkers:
    """What all replicas have shown so far."""

    def __init__(self) -> None:
        self.committed: list[Entry] = []
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], ReplicaKey] = {}
        self._records: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}

    def saw_vote(self, voter_id: int, vote: Vote, response: VoteResponse) -> None:
        """Check a vote that was sent; unsent ones do not count."""
        if response.granted and not vote.pre_vote:
            given = self._votes.setdefault((voter_id, vote.epoch), vote.candidate)
            if given != vote.candidate:
                raise Violation(
                    f"{TWO_VOTES}: node {voter_id} in epoch {vote.epoch} for {given} and {vote.candidate}"
                )

    def saw_epoch(self, node_id: int, epoch: int) -> None:
        """Check an epoch that a replica has sent to others."""
        if epoch < self._epochs.get(node_id, 0):
            raise Violation(f"{EPOCH_FELL}: node {node_id} said {self._epochs[node_id]}, now {epoch}")
        self._epochs[node_id] = epoch

    def forget(self, node_id: int) -> None:
        """Forget a replica whose disk was wiped: it counts as a new one."""
        self._epochs.pop(node_id, None)

    def saw_records(self, log: MemoryLog, first: int, end: int) -> None:
        """Check records that others could read from this replica."""
        for offset in range(max(first, log.start_offset), end):
            entry = log.entry(offset)
            known = self._records.setdefault((offset, entry.epoch), entry.value)
            if known != entry.value:
                raise Violation(
                    f"{SAME_NAME_OTHER_RECORD}: {offset} in epoch {entry.epoch}: {known} and {entry.value}"
                )

    def look_at(self, replica: Replica, log: MemoryLog, committed_before: int) -> None:
        if replica.is_leader:
            leader = self._leaders.setdefault(replica.epoch, replica.me.node_id)
            if leader != replica.me.node_id:
                raise Violation(f"{TWO_LEADERS}: {leader} and {replica.me.node_id} in epoch {replica.epoch}")
        if replica.high_watermark < committed_before:
            raise Violation(f"{HIGH_WATERMARK_FELL}: node {replica.me.node_id} to {replica.high_watermark}")
        if replica.high_watermark > log.end_offset:
            raise Violation(f"{COMMITTED_BEYOND_LOG}: node {replica.me.node_id}, {replica.high_watermark}")
        for offset in range(max(committed_before, 0), replica.high_watermark):
            entry = log.entry(offset)
            if offset == len(self.committed):
                self.committed.append(entry)
            elif self.committed[offset] != entry:
                raise Violation(
                    f"{COMMITTED_CHANGED}: at {offset} node {replica.me.node_id} has {entry}, "
                    f"committed was {self.committed[offset]}"
                )
