"""How fast newcomers are let in: those who work have most of the loop, however many come and go.

What a newcomer costs is more than to let him in: he asks, is answered, goes, and nobody can tell beforehand. So it is
counted how much of a core the loop has used from one to the next, whatever for. As long as that is no more than its
share, all come in at once. Beyond it they wait in the kernel, one at a time, though never for long: a loop that has
much to do for others lets somebody in, too.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 4.0
"""Newcomers are let in without a rest while no more than one part in so many of the loop's time is used."""

CREDIT_SECONDS: Final = 0.02
"""So much of the time that nobody used may be used later at once."""

REST_SECONDS_MIN: Final = 0.001
"""A timer of the loop can be no shorter. What is less adds up."""

REST_SECONDS_MAX: Final = 0.003


class AcceptPace:
    """Times are in seconds: `now` by the clock on the wall, `used` by the core."""

    def __init__(self, now: float, used: float) -> None:
        self._now = now
        self._used = used
        self._owed = 0.0
        """How much longer the loop has to be left to the others; below zero, how much it was left to nobody."""

    def rest_seconds(self, now: float, used: float) -> float:
        """Somebody has been let in: how long the next one has to wait."""
        owed = self._owed + SHARE * (used - self._used) - (now - self._now)
        self._owed = min(max(owed, -CREDIT_SECONDS), REST_SECONDS_MAX)
        self._now, self._used = now, used
        return self._owed if self._owed >= REST_SECONDS_MIN else 0.0
