"""The timeouts of a quorum replica: random, and longer while elections fail.

On an overloaded machine nodes stall for longer than an election timeout: each new candidate would depose the one
before it, forever. So a replica that sees epochs pass without a stable leader doubles its timeouts, repeatedly; one
that has heard from a leader for a while halves them. The first election after a quiet time is as quick as ever.
"""

from __future__ import annotations

from millpond.base.values import dataclass
from millpond.quorum.ports import Chance

ELECTION_DOUBLINGS_MAX = 3
OTHER_DOUBLINGS_MAX = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts of the quorum, in milliseconds."""

    election_ms: int = 1000
    """The minimum; up to as much again is added at random, so that two candidates rarely stand at once."""
    fetch_ms: int = 2000
    fetch_wait_ms: int = 500
    retry_ms: int = 100
    backoff_ms_max: int = 1000
    cut_ms: int = 50
    """A follower waits at random up to this long for others to notice once its leader's connection is closed and a
    new one is refused: the process is gone. The pre-vote keeps it from disturbing a leader that others still have."""

    @property
    def calm_ms(self) -> int:
        """A leader that was heard from for this long is stable."""
        return self.fetch_ms * 2


class Patience:
    def __init__(self, timing: Timing, chance: Chance) -> None:
        self.timing = timing
        self._chance = chance
        self._is_calm = True
        """Whether a leader of this epoch was stable, or it is the initial epoch."""
        self._strain = 0
        self._silent_rounds = 0
        self._rounds_lost = 0
        self._heard_since_ms: int | None = None

    # Observations.

    def on_epoch(self) -> None:
        """An epoch has begun."""
        if not self._is_calm:
            self._strain = min(self._strain + 1, ELECTION_DOUBLINGS_MAX)
        self._is_calm = False

    def on_leader(self) -> None:
        """A leader is known, but has not been heard from yet."""
        self._rounds_lost = self._silent_rounds = 0
        self._heard_since_ms = None

    def on_heard(self, now_ms: int) -> None:
        """The leader answers; or this is the leader, and a majority follows."""
        if self._heard_since_ms is None:
            self._heard_since_ms = now_ms
        elif now_ms - self._heard_since_ms >= self.timing.calm_ms:
            self._heard_since_ms = now_ms
            self._is_calm = True
            self._strain = max(self._strain - 1, 0)

    def on_silence(self) -> None:
        """Too few have answered a call for votes in time."""
        self._silent_rounds = min(self._silent_rounds + 1, OTHER_DOUBLINGS_MAX)

    # Timeouts.

    @property
    def doubt_ms(self) -> int:
        """A leader is heard from far more often than this: after it, a replica lets others try an election."""
        return self._stretched(self.timing.fetch_ms * 2 // 3)

    @property
    def check_quorum_ms(self) -> int:
        # Longer than the followers' timeout: a leader should not resign while they still follow it.
        return self._stretched(self.timing.fetch_ms * 3 // 2)

    def with_leader_ms(self) -> int:
        """Randomised: the followers hear from the leader, and lose it, at the same moment."""
        return self._stretched(self.timing.fetch_ms + self._chance.below(self.timing.fetch_ms // 10))

    def for_pre_vote_ms(self) -> int:
        """Constant: a pre-vote disturbs no replica, and a replica that is back should receive it soon."""
        return self.timing.election_ms + self._chance.below(self.timing.election_ms)

    def for_election_ms(self) -> int:
        return self.for_pre_vote_ms() << self._strain

    def answer_ms(self, *, is_fetch: bool) -> int:
        """A later response is worthless: the leader or candidate has been given up."""
        if is_fetch:
            return self._stretched(self.timing.fetch_ms)
        return self.timing.election_ms << min(max(self._strain, self._silent_rounds), OTHER_DOUBLINGS_MAX)

    def backoff_ms(self) -> int:
        """Longer after each lost round, at random, so that rivals separate."""
        self._rounds_lost = min(self._rounds_lost + 1, 10)
        retry_ms = self.timing.retry_ms
        wait_ms = retry_ms + self._chance.below(retry_ms << (self._rounds_lost + self._strain))
        return min(wait_ms, self.timing.backoff_ms_max << self._strain)

    def _stretched(self, wait_ms: int) -> int:
        return wait_ms << min(self._strain, OTHER_DOUBLINGS_MAX)
