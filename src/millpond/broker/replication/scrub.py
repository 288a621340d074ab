"""Scrubbing: slowly rereads old records, so that damage is found while other replicas are sound.

Recovery and fetches find damage in the records they read; damage in records that nothing reads would go unnoticed
until this is the only copy. A worker reads and checks one piece at a time (`FailedReplicas.check`), in endless rounds
over all partitions that other nodes have, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.later import Later
from millpond.base.ports import Clock, Timer
from millpond.broker.replication.failed_replicas import CHECK_BYTES
from millpond.broker.replication.partitions import Partition, Partitions

REST_MS: Final = 10_000
"""Delay between rounds, and between checks whether one may begin."""
SKIPS_AT_ONCE: Final = 500


class Scrub:
    def __init__(
        self,
        *,
        clock: Clock,
        partitions: Partitions,
        bytes_per_second: Callable[[], int],
        check: Callable[[Partition, int], Later[int]],
    ) -> None:
        self._clock = clock
        self._partitions = partitions
        self._bytes_per_second = bytes_per_second
        self._check = check
        self._timer: Timer | None = None
        self._is_over = False
        self._to_read: list[Partition] = []
        """The rest of this round; the last one is being read."""
        self._offset = 0
        """The next offset to read."""
        self._upper: int | None = None
        """The high watermark when the partition's turn began. Later records are left to the next round: a busy
        partition would otherwise never end its turn."""

    def start(self) -> None:
        self._later(REST_MS, self._begin_round)

    def stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, delay_ms: int, step: Callable[[], None]) -> None:
        if not self._is_over:
            self._timer = self._clock.call_later(delay_ms, step)

    def _begin_round(self) -> None:
        self._to_read = list(self._partitions) if self._bytes_per_second() else []
        self._offset, self._upper = 0, None
        self._read_on()

    def _read_on(self) -> None:
        rate = self._bytes_per_second()
        for _ in range(SKIPS_AT_ONCE):
            if not self._to_read or not rate:
                self._later(REST_MS, self._begin_round)
                return
            partition = self._to_read[-1]
            if self._upper is None:
                self._upper = partition.committed_offset
            self._offset = max(self._offset, partition.log.start_offset)
            if partition.is_replicated and self._offset < min(self._upper, partition.committed_offset):
                self._check(partition, self._offset).then(self._on_checked)
                return
            self._leave()
        self._later(1000 * CHECK_BYTES // rate, self._read_on)

    def _on_checked(self, upper: int) -> None:
        if upper > self._offset:
            self._offset = upper
        else:
            # Not readable for now: the log has failed or is being truncated.
            self._leave()
        self._later(1000 * CHECK_BYTES // max(self._bytes_per_second(), 1), self._read_on)

    def _leave(self) -> None:
        self._to_read.pop()
        self._offset, self._upper = 0, None
