"""Records that every replica has had for long are read again, slowly, so that damage is found while others are sound.

Who comes back, or is sent something, finds damage by itself; what nobody asks for rots unseen, until the day when it
is the only copy. A piece at a time is read and checked on a worker thread (`FailedReplicas.check`), round after round
through all partitions that other nodes have, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.later import Later
from millpond.base.ports import Clock, Timer
from millpond.broker.replication.failed_replicas import CHECK_BYTES
from millpond.broker.replication.partitions import Partition, Partitions

REST_MS: Final = 10_000
"""Between two rounds, and until it is looked again whether to begin."""
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
        """What is left of this round; the last is being read."""
        self._offset = 0
        """Up to here."""
        self._upper: int | None = None
        """Where it was committed when its turn came. What is written meanwhile is for the next round: to one that is
        written to all the time there would be no end, and no turn for the others."""

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
            # There is nothing to be had from it for now: it has failed, or is being cut back.
            self._leave()
        self._later(1000 * CHECK_BYTES // max(self._bytes_per_second(), 1), self._read_on)

    def _leave(self) -> None:
        self._to_read.pop()
        self._offset, self._upper = 0, None
