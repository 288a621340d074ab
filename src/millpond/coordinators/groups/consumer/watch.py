"""The timers of a group's members. They are lost with the coordinator and restart when the group is loaded."""

from __future__ import annotations

from typing import Final

from millpond.coordinators.groups.timers import TimerKey, Timers

SESSION: Final = "session"
REVOCATION: Final = "revocation"
REJOIN: Final = "rejoin"
SYNC: Final = "sync"

DUE_MAX: Final = 200
"""How many members leave a group at once when their time is up: each takes three records, and requests wait."""

KINDS: Final = (SESSION, REVOCATION, REJOIN, SYNC)


class Watch:
    def __init__(self) -> None:
        self.timers = Timers()

    def session(self, member_id: str, at_ms: int) -> None:
        """The deadline for the next heartbeat."""
        self.timers.set(TimerKey(SESSION, member_id=member_id), at_ms)

    def revocation(self, member_id: str, at_ms: int) -> None:
        """The deadline for a member's revocations."""
        self.timers.set(TimerKey(REVOCATION, member_id=member_id), at_ms)

    def revoked(self, member_id: str) -> None:
        self.timers.cancel(TimerKey(REVOCATION, member_id=member_id))

    def rejoin(self, member_id: str, at_ms: int) -> None:
        """The deadline for a classic member to rejoin. The first request counts."""
        key = TimerKey(REJOIN, member_id=member_id)
        if key not in self.timers:
            self.timers.set(key, at_ms)

    def rejoined(self, member_id: str) -> None:
        self.timers.cancel(TimerKey(REJOIN, member_id=member_id))

    def sync(self, member_id: str, at_ms: int) -> None:
        """The deadline for a classic member that joined to fetch its assignment."""
        self.timers.set(TimerKey(SYNC, member_id=member_id), at_ms)

    def synced(self, member_id: str) -> None:
        self.timers.cancel(TimerKey(SYNC, member_id=member_id))

    def forget(self, member_id: str) -> None:
        for kind in KINDS:
            self.timers.cancel(TimerKey(kind, member_id=member_id))

    def next_ms(self) -> int | None:
        return self.timers.next_ms()

    def due(self, now_ms: int) -> list[tuple[str, str]]:
        """Kinds and members of expired timers, earliest first; if very many, only some."""
        timers: list[tuple[str, str]] = []
        while len(timers) < DUE_MAX and (key := self.timers.pop_due(now_ms)) is not None:
            timers.append((key.kind, key.member_id))
        return timers
