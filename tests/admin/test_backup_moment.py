"""A backup that is taken while transactions begin and end has each of them whole, or not at all."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from millpond.admin.backup import back_up
from millpond.admin.moment import LogState
from millpond.admin.restore import restore, verify
from millpond.testing import Pond

TOPICS = ("left", "right")


class Writer(threading.Thread):
    """Writes the same number to every topic, each in a transaction of its own, until it is stopped."""

    def __init__(self, pond: Pond) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.committed = -1
        self.began = 0
        self._producer = Producer(
            {
                **pond.client_settings(),
                "transactional.id": "writer",
                "transaction.timeout.ms": 1000,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(20)

    def run(self) -> None:
        while not self.stopped.is_set():
            self.write(self.began)
            self.began += 1
            time.sleep(0.02)

    def write(self, number: int) -> None:
        self._producer.begin_transaction()
        for topic in TOPICS:
            for half in b"ab":
                self._producer.produce(topic, b"%d%c" % (number, half), partition=0)
                self._producer.flush(20)
        self._producer.commit_transaction(20)
        self.committed = number


def committed(pond: Pond, topic: str) -> list[bytes]:
    """All that a reader of committed records gets, up to the end."""
    consumer = Consumer(
        {
            **pond.client_settings(),
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        values: list[bytes] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            fault = message.error()
            if fault is None:
                values.append(message.value() or b"")
            elif fault.code() == KafkaError._PARTITION_EOF:
                return values
        pytest.fail(f"{topic} has no end after {values[-3:]}")
    finally:
        consumer.close()


def test_transactions_are_whole_in_a_backup(tmp_path: Path) -> None:
    data, kept, again = tmp_path / "data", tmp_path / "kept", tmp_path / "again"
    with Pond(folder=data) as pond:
        for topic in TOPICS:
            pond.create_topic(topic)
        writer = Writer(pond)
        writer.start()
        began = time.monotonic()
        while writer.committed < 10 and time.monotonic() < began + 20:
            time.sleep(0.01)
        before = writer.committed
        # As slow as if there were much to copy.
        back_up(data, kept, lambda: 1_700_000_000_000, lambda _: time.sleep(0.02))
        assert writer.committed > before, "some have ended meanwhile"
        writer.stopped.set()
        writer.join(20)
    restore(kept, again)
    with Pond(folder=again) as pond:
        # Under the same name: what is open goes with what comes, or not.
        writer = Writer(pond)
        writer.write(writer.began + 1_000_000)
        left, right = committed(pond, "left"), committed(pond, "right")
        assert left == right
        numbers = [each[:-1] for each in left]
        assert len(left) == 2 * len(set(numbers)), "both halves of each"
        assert left[-1] == b"1000000b"
        assert len(left) > 2 * before


def test_what_is_left_of_a_log() -> None:
    seen = LogState((("0.log", 1), ("5.log", 2), ("9.log", 3)), 100)
    assert seen.remaining_in(seen) == ("0.log", "5.log", "9.log")
    assert seen.remaining_in(LogState((("5.log", 2), ("9.log", 3), ("12.log", 4)))) == ("5.log", "9.log"), (
        "old ones were deleted"
    )
    assert seen.remaining_in(LogState((("0.log", 7), ("9.log", 3)))) is None, (
        "compaction has put one in the place of two"
    )
    assert seen.remaining_in(LogState((("0.log", 1), ("9.log", 3)))) is None
    assert seen.remaining_in(LogState((("12.log", 4),))) is None


def test_a_log_compacted_meanwhile_is_copied_and_reported(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    with Pond(folder=data) as pond:
        pond.create_topic("left")
        pond.produce("left", b"one")
    (segment,) = (data / "left-0").glob("*.log")

    def compact(_: int) -> None:
        if (kept / "files" / "left-0").exists() and not (tmp_path / "new").exists():
            shutil.copy(segment, tmp_path / "new")
            shutil.copy(tmp_path / "new", tmp_path / "swap")
            (tmp_path / "swap").rename(segment)

    result = back_up(data, kept, lambda: 1_700_000_000_000, compact)
    assert (tmp_path / "new").exists()
    assert not result.is_one_moment
    assert verify(kept)[1] == []
    assert any(each.path.startswith("left-0/") and each.size for each in result.manifest.files)
