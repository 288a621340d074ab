"""Memory accounting of groups: counts everything that clients can make a group keep, and enforces the limit.

The amounts approximate what Python needs, measured once; what matters is that nothing repeatable is free. A group
itself is not counted, because the number of groups has its own limit.

Each shard counts its own changes; the limit applies to all shards of a node together. Requests check for room before
they change anything. Records from the log are always accepted: they passed the check once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millpond.base.errors import ErrorCode, LimitMet
from millpond.config.quota import GROUPS_MAX_BYTES

MEMBER_BYTES: Final = 1024
"""A member with its timers, without its metadata."""
PROMISED_ID_BYTES: Final = 256
PROTOCOL_BYTES: Final = 128
ASSIGNMENT_BYTES: Final = 128
"""A classic member's assignment, without its bytes."""
OFFSET_BYTES: Final = 256
TOPIC_OF_OFFSETS_BYTES: Final = 512
"""A topic for which a group has offsets."""
PENDING_OFFSET_BYTES: Final = 1024
"""An offset that waits for the end of its transaction."""
TARGET_BYTES: Final = 200
HELD_BYTES: Final = 240
"""A partition in a consumer group member's target, and one that it holds."""

REBALANCE_BYTES: Final = 512
CAUSE_BYTES: Final = 256
MOVE_BYTES: Final = 160
"""In the history: a rebalance, a cause, a partition that changed owners."""

HISTORY_SHARE: Final = 4
"""Histories may take one part in this many of the limit, on top of it, so that they never cause a refusal."""

ENDLESS: Final = 1 << 62


def text_bytes(text: str | None) -> int:
    if text is None:
        return 0
    return 56 + (len(text) if text.isascii() else 4 * len(text))


def names_bytes(names: Iterable[str]) -> int:
    """A set or a list of names."""
    return sum(64 + text_bytes(name) for name in names)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class GroupMemory:
    """The memory of one shard's groups and offsets."""

    def __init__(
        self,
        bytes_max: Callable[[], int] = lambda: ENDLESS,
        all_used_bytes: Callable[[], int] | None = None,
        all_history_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.used_bytes = 0
        self.history_bytes = 0
        """The memory of rebalance histories; without room, less is kept."""
        self._bytes_max = bytes_max
        self._all_used_bytes = all_used_bytes
        """The use of all shards that share the limit; by default only this one."""
        self._all_history_bytes = all_history_bytes

    def take(self, more_bytes: int) -> None:
        """Count this much more, or less if negative."""
        self.used_bytes += more_bytes

    def has_room(self, more_bytes: int) -> bool:
        if more_bytes <= 0:
            return True
        used_bytes = self.used_bytes if self._all_used_bytes is None else self._all_used_bytes()
        return used_bytes + more_bytes <= self._bytes_max()

    def has_room_for_history(self, more_bytes: int) -> bool:
        known_bytes = self.history_bytes if self._all_history_bytes is None else self._all_history_bytes()
        return known_bytes + more_bytes <= self._bytes_max() // HISTORY_SHARE

    def check(self, more_bytes: int) -> None:
        """Refused if this much more is too much. Requests that make nothing larger always pass."""
        if not self.has_room(more_bytes):
            limit, bytes_max = GROUPS_MAX_BYTES.name, self._bytes_max()
            raise LimitMet(
                ErrorCode.POLICY_VIOLATION,
                limit,
                bytes_max,
                f"the groups of this node have reached {limit}={bytes_max}",
            )
