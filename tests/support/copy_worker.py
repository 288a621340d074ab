"""A copying job in a separate process: read in a group, write in a transaction, commit the offsets in it.

python copy_worker.py bootstrap input output group transactional-id protocol records-of-a-batch

The first batch, and every tenth after it, is aborted on purpose, so that the output has records that must stay
invisible. The job exits on any error that it cannot recover from, and its parent restarts it, as after a crash.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

GATHER_SECONDS = 0.1
ABORTS_ONE_IN = 10
WORK_SECONDS = 0.03
"""Simulates computation, so that most kills hit an open transaction."""
PATIENCE_SECONDS = 30.0
STUCK_SECONDS = 20.0
"""The limit for a call with a timeout of five seconds. librdkafka 2.16 waits without a limit in
send_offsets_to_transaction once its search for the group's coordinator has failed."""

FENCED = 3
STUCK = 4


class CopyJob:
    def __init__(
        self, bootstrap: str, source: str, target: str, group: str, name: str, protocol: str, batch_records: str
    ) -> None:
        common = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "log_level": 0,
        }
        if "," not in bootstrap:
            # librdkafka 2.16 forgets a lone broker that goes away, and then waits for it forever in
            # send_offsets_to_transaction, whose coordinator it remembers. With several brokers it may forget all.
            common["metadata.recovery.strategy"] = "none"
        self._target = target
        self._producer = Producer(
            {**common, "transactional.id": name, "transaction.timeout.ms": 10_000, "linger.ms": 1}
        )
        grouping = (
            {"group.protocol": "consumer"}
            if protocol == "consumer"
            else {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": 1500,
                "heartbeat.interval.ms": 100,
            }
        )
        self._consumer = Consumer(
            {
                **common,
                **grouping,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
            }
        )
        self._source = source
        self._batch_records = int(batch_records)
        self._has_moved = False
        self._batches = 0

    def run(self) -> None:
        self._patiently(lambda: self._producer.init_transactions(5.0))
        self._consumer.subscribe([self._source], on_assign=self._moved, on_revoke=self._moved, on_lost=self._moved)
        while True:
            batch = self._gather()
            if not batch:
                continue
            try:
                self._copy(batch)
            except KafkaException as raised:
                fault: KafkaError = raised.args[0]
                if fault.fatal() or not fault.txn_requires_abort():
                    tell(f"ends: {fault}")
                    sys.exit(FENCED)
                tell(f"aborts: {fault}")
                self._abort()

    def _moved(self, *_: object) -> None:
        self._has_moved = True

    def _gather(self) -> list[Message]:
        """The next records, all of one assignment: what was read before partitions moved is read again."""
        result: list[Message] = []
        deadline = time.monotonic() + GATHER_SECONDS
        while len(result) < self._batch_records and (left := deadline - time.monotonic()) > 0:
            self._has_moved = False
            message = self._consumer.poll(left)
            if self._has_moved and result:
                self._rewind()
                return []
            if message is not None and message.error() is None:
                result.append(message)
        return result

    def _copy(self, batch: list[Message]) -> None:
        self._producer.begin_transaction()
        ends: dict[tuple[str, int], int] = {}
        for each in batch:
            self._producer.produce(self._target, each.value(), each.key(), each.partition())
            ends[each.topic(), each.partition()] = each.offset() + 1
        time.sleep(WORK_SECONDS)
        self._batches += 1
        if self._batches % ABORTS_ONE_IN == 1:
            self._producer.flush(PATIENCE_SECONDS)
            self._abort()
            return
        offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
        member = self._consumer.consumer_group_metadata()
        self._patiently(lambda: self._producer.send_offsets_to_transaction(offsets, member, 5.0))
        self._patiently(lambda: self._producer.commit_transaction(5.0))
        tell(f"copied {batch[0].partition()} {batch[0].offset()} to {ends}")

    def _abort(self) -> None:
        self._patiently(lambda: self._producer.abort_transaction(5.0))
        self._rewind()

    def _rewind(self) -> None:
        """Seek back to the committed offset of each partition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                for each in self._consumer.committed(self._consumer.assignment(), timeout=5.0):
                    tell(f"goes back {each.partition} to {each.offset}")
                    self._consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))
                return
            except KafkaException as fault:
                tell(f"rewinds again: {fault}")
                time.sleep(0.05)
        sys.exit(STUCK)

    def _patiently(self, do) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # Ends the process from a separate thread, whatever the others wait for.
            faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
            try:
                do()
                return
            except KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            finally:
                faulthandler.cancel_dump_traceback_later()


def tell(text: str) -> None:
    print(time.strftime("%H:%M:%S"), sys.argv[5], text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # A worker must not outlive its parent.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # SIGUSR1 shows what the process waits for.
    faulthandler.register(signal.SIGUSR1)
    CopyJob(*sys.argv[1:]).run()
