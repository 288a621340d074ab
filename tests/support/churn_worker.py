"""One consumer of a group in a separate process, which logs everything that it does.

    python churn_worker.py BOOTSTRAP GROUP TOPIC PROTOCOL SESSION_MS FILE

Each line is written at once, so a killed worker has logged everything but its last few uncommitted records. Times are
microseconds of the clock that all processes of a machine share.

    assign    TIME GENERATION PARTITION…
    revoke    TIME GENERATION PARTITION…        revoked cleanly: everything is committed, nothing more is read
    lost      TIME GENERATION PARTITION…        learned too late that others have them
    read      TIME GENERATION PARTITION FIRST LAST
    committing TIME GENERATION PARTITION:OFFSET…
    committed  TIME CODE                         of the commit before; 0 is success
    closing   TIME                               stops reading; librdkafka may leave first and revoke afterwards
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from confluent_kafka import Consumer, KafkaException, TopicPartition

from support.groups import generation_of, settings_for

COMMIT_SECONDS = 0.05
RUN_LENGTH_MAX = 64


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Worker:
    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, session_ms: int, path: str) -> None:
        self.topic = topic
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._next: dict[int, int] = {}
        """By partition: the offset after the last record, until it is committed."""
        self._runs: dict[int, list[int]] = {}
        """By partition: generation, first and last offset of records that are not logged yet."""
        # Debug output to standard error, which the campaign keeps when something is wrong: responses to OffsetFetch
        # and ListOffsets, and every offset reset with its reason. Without it, a restart at record 0 could not be
        # explained.
        more: dict[str, object] = {"max_poll_interval_ms": max(10_000, session_ms), "debug": "cgrp,topic,consumer"}
        if protocol != "consumer":
            more |= {"session_timeout_ms": session_ms, "heartbeat_interval_ms": session_ms // 10}
        self.consumer = Consumer(settings_for(bootstrap, group, protocol, **more))
        self.consumer.subscribe([topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)

    def say(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def run(self, is_over: threading.Event) -> None:
        commit_at = 0.0
        while not is_over.is_set():
            message = self.consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.note(message.partition(), message.offset())
            if time.monotonic() >= commit_at:
                self.commit()
                commit_at = time.monotonic() + COMMIT_SECONDS
        self.say("closing", now_us())
        self.consumer.close()

    def note(self, partition: int, offset: int) -> None:
        """A record was processed."""
        generation = generation_of(self.consumer)
        run = self._runs.get(partition)
        if run and run[0] == generation and run[2] + 1 == offset and offset - run[1] < RUN_LENGTH_MAX:
            run[2] = offset
        else:
            self.write_run(partition)
            self._runs[partition] = [generation, offset, offset]
        self._next[partition] = offset + 1

    def write_run(self, partition: int) -> None:
        if run := self._runs.pop(partition, None):
            generation, first, last = run
            self.say("read", now_us(), generation, partition, first, last)

    def commit(self) -> None:
        """Commit everything that was processed; it has been logged before."""
        for partition in list(self._runs):
            self.write_run(partition)
        if not self._next:
            return
        partitions = [TopicPartition(self.topic, partition, offset) for partition, offset in self._next.items()]
        commits = (f"{each.partition}:{each.offset}" for each in partitions)
        self.say("committing", now_us(), generation_of(self.consumer), *commits)
        code = 0
        try:
            done = self.consumer.commit(offsets=partitions, asynchronous=False)
            code = next((each.error.code() for each in done if each.error is not None), 0)
        except KafkaException as error:
            code = error.args[0].code()
        self.say("committed", now_us(), code)
        # A commit in the middle of a rebalance is refused. If the worker keeps its partitions and nothing more is
        # written to them, the next commit repeats it; partitions that it loses are forgotten.
        if not code:
            self._next.clear()

    # Rebalance callbacks.

    def on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.say("assign", now_us(), generation_of(self.consumer), *(each.partition for each in partitions))

    def on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.forget(partitions)
        self.say("revoke", now_us(), generation_of(self.consumer), *(each.partition for each in partitions))

    def on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.write_run(each.partition)
        self.forget(partitions)
        self.say("lost", now_us(), generation_of(self.consumer), *(each.partition for each in partitions))

    def forget(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)


def main() -> None:
    # A worker must not outlive the test that started it, however that ends.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    bootstrap, group, topic, protocol, session_ms, path = sys.argv[1:]
    asked_to_leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_leave.set())
    Worker(bootstrap, group, topic, protocol, int(session_ms), path).run(asked_to_leave)


if __name__ == "__main__":
    main()
