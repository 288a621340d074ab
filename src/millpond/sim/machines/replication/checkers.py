"""Invariants of a replicated partition, checked after every event."""

from __future__ import annotations

from millpond.sim.machines.memory_log import Entry, MemoryLog
from millpond.sim.machines.run import Violation

VISIBLE_CHANGED = "a record that readers saw changed"
SAME_NAME_OTHER_RECORD = "one offset in one leader epoch is two records"
ACKNOWLEDGED_LOST = "an acknowledged record is lost"
TRUSTED_LACKS_RECORDS = "a replica that may lead lacks committed records"
TWO_LEADERS = "two leaders in one leader epoch"
STRANGER_TRUSTED = "a broker that is fenced or from an earlier life is in the ISR"
HIGH_WATERMARK_FELL = "the high watermark of a leader fell"
LOSS_INVENTED = "a broker that lost nothing counts as one that may have"


class Checkers:
    def __init__(self) -> None:
        self.visible: list[Entry] = []
        """Entries that readers could have seen."""
        self._records: dict[tuple[int, int], int] = {}
        self._leaders: dict[int, int] = {}

    def saw_leader(self, node_id: int, leader_epoch: int) -> None:
        leader = self._leaders.setdefault(leader_epoch, node_id)
        if leader != node_id:
            raise Violation(f"{TWO_LEADERS}: {leader} and {node_id} in {leader_epoch}")

    def saw_records(self, log: MemoryLog, first: int) -> None:
        for offset in range(max(first, 0), log.end_offset):
            entry = log.entry(offset)
            known = self._records.setdefault((offset, entry.epoch), entry.value)
            if known != entry.value:
                raise Violation(f"{SAME_NAME_OTHER_RECORD}: {offset} in {entry.epoch}: {known} and {entry.value}")

    def saw_high_watermark(self, node_id: int, log: MemoryLog, before: int, now: int) -> None:
        if now < before:
            raise Violation(f"{HIGH_WATERMARK_FELL}: node {node_id} from {before} to {now}")
        for offset in range(max(before, 0), now):
            entry = log.entry(offset)
            if offset == len(self.visible):
                self.visible.append(entry)
            elif self.visible[offset] != entry:
                raise Violation(f"{VISIBLE_CHANGED}: {offset} was {self.visible[offset]}, node {node_id} has {entry}")

    def saw_trusted(self, node_id: int, log: MemoryLog) -> None:
        """Check a replica in the ISR or eligible to lead."""
        if log.end_offset < len(self.visible) or (
            self.visible and log.entry(len(self.visible) - 1) != self.visible[-1]
        ):
            raise Violation(
                f"{TRUSTED_LACKS_RECORDS}: node {node_id} ends at {log.end_offset}, {len(self.visible)} seen"
            )
