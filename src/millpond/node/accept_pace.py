"""How fast new connections are accepted, so that existing connections keep most of the loop.

A new connection costs more than its accept: it sends requests, is answered and leaves, which cannot be predicted. So
this measures how much CPU time the loop has used between two accepts, for whatever purpose. While that is within its
share, connections are accepted at once. Beyond it they wait in the kernel, one at a time, but never for long: even a
busy loop keeps accepting.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 4.0
"""Connections are accepted without a pause while the loop uses at most one part in this many of its time."""

CREDIT_SECONDS: Final = 0.02
"""How much unused time may be saved up for a burst."""

REST_SECONDS_MIN: Final = 0.001
"""The shortest timer of the loop. Shorter pauses add up."""

REST_SECONDS_MAX: Final = 0.003


class AcceptPace:
    """Times are in seconds: `now` on the monotonic clock, `used` in CPU time."""

    def __init__(self, now: float, used: float) -> None:
        self._now = now
        self._used = used
        self._owed = 0.0
        """How much longer the loop must be left to others; below zero, how long it was idle."""

    def rest_seconds(self, now: float, used: float) -> float:
        """How long the next connection must wait after one was accepted."""
        owed = self._owed + SHARE * (used - self._used) - (now - self._now)
        self._owed = min(max(owed, -CREDIT_SECONDS), REST_SECONDS_MAX)
        self._now, self._used = now, used
        return self._owed if self._owed >= REST_SECONDS_MIN else 0.0
