"""Many consumers of one group in one process: `python -m bench.crowd JSON` runs them and records their reads.

Commands on standard input: `restart SLOT SECONDS_AWAY`, `report` (answered by one line of JSON with everything since
the last report), `end`. Times are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

POLL_SECONDS = 0.2
HEARTBEAT_MS = 1000
SESSION_MS = 10_000

KINDS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "static": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}


def settings(port: int, group: str, kind: str, slot: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "group.id": group,
        "auto.offset.reset": "latest",
        "auto.commit.interval.ms": 1000,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
        **KINDS[kind],
    }
    if kind != "consumer":
        # In the new protocol the node sets it. After a rebalance all members send heartbeats at the same time, and so
        # learn of the next one together; in a group that has run for a while they do not, so vary the interval.
        interval_ms = HEARTBEAT_MS * (0.85 + 0.3 * (slot * 37 % 50) / 50)
        found |= {"heartbeat.interval.ms": int(interval_ms), "session.timeout.ms": SESSION_MS}
    if kind == "static":
        found["group.instance.id"] = f"slot-{slot}"
    return found


class Slot(threading.Thread):
    """One consumer, restarted on command."""

    def __init__(self, number: int, settings: dict[str, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.reads: list[tuple[float, int, int]] = []
        """Time, slot and partition of every record."""
        self.changes: list[tuple[float, int]] = []
        """The times at which its assignment changed."""
        self.seconds_away: float | None = None
        self.is_over = False
        self._settings = settings
        self._topic = topic

    def run(self) -> None:
        consumer = self._joined()
        while not self.is_over:
            message = consumer.poll(POLL_SECONDS)
            partition = None if message is None or message.error() else message.partition()
            if partition is not None:
                self.reads.append((time.monotonic(), self.number, partition))
            if self.seconds_away is not None:
                consumer.close()
                time.sleep(self.seconds_away)
                self.seconds_away = None
                consumer = self._joined()
        consumer.close()

    def _joined(self) -> Consumer:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic], on_assign=self._changed, on_revoke=self._changed)
        return consumer

    def _changed(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.changes.append((time.monotonic(), self.number))


def main() -> None:
    told = json.loads(sys.argv[1])
    group, topic, kind = told["group"], told["topic"], told["kind"]
    slots = {number: Slot(number, settings(told["port"], group, kind, number), topic) for number in told["slots"]}
    for slot in slots.values():
        slot.start()
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["restart", number, seconds]:
                slots[int(number)].seconds_away = float(seconds)
            case ["report"]:
                reads = [each for slot in slots.values() for each in _taken(slot.reads)]
                changes = [each for slot in slots.values() for each in _taken(slot.changes)]
                print(json.dumps({"reads": reads, "changes": changes}), flush=True)
            case _:
                break
    for slot in slots.values():
        slot.is_over = True
    for slot in slots.values():
        slot.join(10)


def _taken(found: list[Any]) -> list[Any]:
    """Remove and return the entries so far, while a thread appends to the list."""
    count = len(found)
    taken = found[:count]
    del found[:count]
    return taken


if __name__ == "__main__":
    main()
