"""How much memory groups take, and whether there is room for more: all that clients can make them keep has a price.

The prices are about what Python needs, measured once; what counts is that nothing that can be had many times over is
free. A group by itself is not counted, because the number of groups has a limit of its own.

Each shard counts what comes and goes as it does; the limit is one for all shards of a node. Requests ask for room
before they change anything. What the log says is taken in without asking: it was let in once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millpond.base.errors import ErrorCode, LimitMet
from millpond.config.quota import GROUPS_MAX_BYTES

MEMBER_BYTES: Final = 1024
"""A member with its timers, beside what it says of itself."""
PROMISED_ID_BYTES: Final = 256
PROTOCOL_BYTES: Final = 128
ASSIGNMENT_BYTES: Final = 128
"""A classic member's assignment, beside its length."""
OFFSET_BYTES: Final = 256
TOPIC_OF_OFFSETS_BYTES: Final = 512
"""A topic of which a group has offsets."""
PENDING_OFFSET_BYTES: Final = 1024
"""An offset that waits for the end of its transaction."""
TARGET_BYTES: Final = 200
HELD_BYTES: Final = 240
"""A partition that a member of the new protocol is meant to have, and one that it has."""

REBALANCE_BYTES: Final = 512
CAUSE_BYTES: Final = 256
MOVE_BYTES: Final = 160
"""Of the history: a rebalance, something that set it off, a partition that changed hands."""

HISTORY_SHARE: Final = 4
"""Histories take one part in so many of the limit, beside it: nobody is refused because of what was once."""

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
    """What the groups and offsets of one shard take."""

    def __init__(
        self,
        bytes_max: Callable[[], int] = lambda: ENDLESS,
        all_used_bytes: Callable[[], int] | None = None,
        all_history_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.used_bytes = 0
        self.history_bytes = 0
        """What is remembered of rebalances; where there is no room, that is less."""
        self._bytes_max = bytes_max
        self._all_used_bytes = all_used_bytes
        """What all shards take that share the limit; without it, there is only this one."""
        self._all_history_bytes = all_history_bytes

    def take(self, more_bytes: int) -> None:
        """So much more is kept, or less if it is negative."""
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
        """Refused if so much more is too much. What makes nothing larger never is."""
        if not self.has_room(more_bytes):
            limit, bytes_max = GROUPS_MAX_BYTES.name, self._bytes_max()
            raise LimitMet(
                ErrorCode.POLICY_VIOLATION,
                limit,
                bytes_max,
                f"all groups of this node together keep as much as {limit}={bytes_max} allows",
            )
