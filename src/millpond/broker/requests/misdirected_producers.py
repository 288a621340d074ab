"""Producers that keep sending to a node that does not lead, though they know the leader.

When librdkafka sees the leader change from A to B and back to A within milliseconds, it considers A the leader but
keeps sending to B, and naming A again changes nothing. It recovers when it sees no leader, and then A.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

STUCK_MS: Final = 3_000
"""A producer that has been refused repeatedly for this long is stuck."""

STUCK_COUNT: Final = 5
PAUSE_MS_MAX: Final = 2_500
"""Clients retry within a second: refusals that are further apart are unrelated."""

REMEMBERED_MAX: Final = 1_000


class MisdirectedProducers:
    """For one connection: which partitions it sent to that another node leads, in which epoch, and since when."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[UUID, int, int], tuple[int, int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, topic_id: UUID, index: int, leader_epoch: int, now_ms: int) -> None:
        key = topic_id, index, leader_epoch
        since_ms, last_ms, times = self._refused.pop(key, (now_ms, now_ms, 0))
        if now_ms - last_ms > PAUSE_MS_MAX:
            since_ms, times = now_ms, 0
        self._refused[key] = since_ms, now_ms, times + 1
        if len(self._refused) > REMEMBERED_MAX:
            del self._refused[next(iter(self._refused))]

    def is_stuck(self, topic_id: UUID, index: int, leader_epoch: int, now_ms: int) -> bool:
        """Whether to answer once that there is no leader."""
        key = topic_id, index, leader_epoch
        since_ms, last_ms, times = self._refused.get(key, (now_ms, now_ms, 0))
        if times < STUCK_COUNT or last_ms - since_ms < STUCK_MS or now_ms - last_ms > PAUSE_MS_MAX:
            return False
        del self._refused[key]
        return True
