"""A transactional producer that works as librdkafka with a broker does, without either."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException


class _StubMessage:
    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partition(self) -> int:
        return self._partition


class StubTransactions:
    """Batches are what is produced between two flushes, by partition; a broker refuses whole batches.

    After a refusal the transaction can only be aborted.
    """

    def __init__(self, *, record_bytes_max: int, batch_bytes_max: int = 1_000_000, partitions: int = 1) -> None:
        self.committed: list[bytes] = []
        self.flushes = 0
        self.begun = 0
        self.hasty_commits = 0
        """Commits of what was not delivered yet: librdkafka does not end their wait for a refusal."""
        self._record_bytes_max = record_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._partitions = partitions
        self._queue: list[tuple[int, bytes, Callable[..., None]]] = []
        self._delivered: list[bytes] = []
        self._has_failed = False

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, timeout_s: float) -> None: ...

    def begin_transaction(self) -> None:
        self.begun += 1

    def produce(self, topic: str, value: bytes, key: bytes | None, **options: Any) -> None:
        if self._has_failed:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._queue.append((options.get("partition", 0), value, options["on_delivery"]))

    def poll(self, timeout_s: float) -> int:
        return 0

    def flush(self, timeout_s: float) -> int:
        self.flushes += 1
        if self._has_failed:
            return len(self._queue)
        batches: dict[int, list[tuple[bytes, Callable[..., None]]]] = defaultdict(list)
        for partition, value, delivered in self._queue:
            batches[partition].append((value, delivered))
        for partition, batch in batches.items():
            code = self._refusal(partition, [value for value, _ in batch])
            if code is None:
                self._delivered += [value for value, _ in batch]
                continue
            self._has_failed = True
            for _, delivered in batch:
                delivered(KafkaError(code), _StubMessage(partition))
        self._queue = []
        return 0

    def _refusal(self, partition: int, values: list[bytes]) -> int | None:
        if partition >= self._partitions:
            return int(KafkaError._UNKNOWN_PARTITION)
        is_too_large = max(map(len, values)) > self._record_bytes_max or sum(map(len, values)) > self._batch_bytes_max
        return int(KafkaError.MSG_SIZE_TOO_LARGE) if is_too_large else None

    def send_offsets_to_transaction(self, offsets: object, group: object, timeout_s: float) -> None: ...

    def commit_transaction(self, timeout_s: float) -> None:
        self.hasty_commits += bool(self._queue)
        self.flush(timeout_s)
        if self._has_failed:
            raise KafkaException(KafkaError(KafkaError._STATE, "must abort", False, False, True))
        self.committed += self._delivered
        self._delivered = []

    def abort_transaction(self, timeout_s: float) -> None:
        self._queue, self._delivered, self._has_failed = [], [], False
