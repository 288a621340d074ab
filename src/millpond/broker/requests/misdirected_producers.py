"""Producers that stay with a node that does not lead, though they were told who does.

librdkafka, told of leaders A, B and A again within milliseconds, takes A for the leader and goes on sending to B: its
move there is under way, and naming A once more changes nothing. It finds its way when it hears that nobody leads, and
then of A.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

LOST_MS: Final = 3_000
"""Whoever is refused for so long, again and again, does not go where it was sent."""

LOST_TIMES: Final = 5
PAUSE_MS_MAX: Final = 2_500
"""Clients wait a second at the most before they try again: after a longer pause it is another story."""

REMEMBERED_MAX: Final = 1_000


class MisdirectedProducers:
    """Of one connection: what it has sent here and another node leads, in which epoch, and since when."""

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

    def is_lost(self, topic_id: UUID, index: int, leader_epoch: int, now_ms: int) -> bool:
        """Whether to say that nobody leads; once, then it begins anew."""
        key = topic_id, index, leader_epoch
        since_ms, last_ms, times = self._refused.get(key, (now_ms, now_ms, 0))
        if times < LOST_TIMES or last_ms - since_ms < LOST_MS or now_ms - last_ms > PAUSE_MS_MAX:
            return False
        del self._refused[key]
        return True
