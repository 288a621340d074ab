"""How long a replica of the quorum waits for others: at random, and longer while elections come to nothing.

On a machine with far too little CPU nodes stand still for longer than an election waits: each new candidate
overthrows the one before it, and so it would go on for ever. So whoever sees one epoch follow another without a
leader that stays waits twice as long, and twice again; who has heard a leader for a while, half as long. The first
election after a quiet time is as quick as ever.
"""

from __future__ import annotations

from millpond.base.values import dataclass
from millpond.quorum.ports import Chance

ELECTION_DOUBLINGS_MAX = 3
OTHER_DOUBLINGS_MAX = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the quorum waits, in milliseconds."""

    election_ms: int = 1000
    """At least; as much again at random, so that two seldom stand at once."""
    fetch_ms: int = 2000
    fetch_wait_ms: int = 500
    retry_ms: int = 100
    backoff_ms_max: int = 1000
    cut_ms: int = 50
    """At random up to so long a follower waits for others to notice, once its leader's connection is closed and a new
    one is refused: a process that is gone. The pre-vote keeps it from disturbing a leader that others still have."""

    @property
    def calm_ms(self) -> int:
        """A leader that was heard for so long stays."""
        return self.fetch_ms * 2


class Patience:
    def __init__(self, timing: Timing, chance: Chance) -> None:
        self.timing = timing
        self._chance = chance
        self._is_calm = True
        """Whether a leader of this epoch has stayed, or it is the one that we began with."""
        self._strain = 0
        self._silent_rounds = 0
        self._rounds_lost = 0
        self._heard_since_ms: int | None = None

    # What has happened.

    def on_epoch(self) -> None:
        """An epoch has begun."""
        if not self._is_calm:
            self._strain = min(self._strain + 1, ELECTION_DOUBLINGS_MAX)
        self._is_calm = False

    def on_leader(self) -> None:
        """There is a leader, as far as we know; it has to be heard yet."""
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

    # How long to wait.

    @property
    def doubt_ms(self) -> int:
        """A leader is heard far more often than this: who has not been may let others find out what they can do."""
        return self._stretched(self.timing.fetch_ms * 2 // 3)

    @property
    def check_quorum_ms(self) -> int:
        # Longer than the followers' own patience: a leader should not go while they still believe in it.
        return self._stretched(self.timing.fetch_ms * 3 // 2)

    def with_leader_ms(self) -> int:
        """Not the same for all: they hear it, and miss it, in the same moment."""
        return self._stretched(self.timing.fetch_ms + self._chance.below(self.timing.fetch_ms // 10))

    def for_pre_vote_ms(self) -> int:
        """Always the same: it disturbs nobody, and whoever is there again should hear of it soon."""
        return self.timing.election_ms + self._chance.below(self.timing.election_ms)

    def for_election_ms(self) -> int:
        return self.for_pre_vote_ms() << self._strain

    def answer_ms(self, *, is_fetch: bool) -> int:
        """After so long an answer is worth nothing: nobody believes in the leader, or in the candidate, any more."""
        if is_fetch:
            return self._stretched(self.timing.fetch_ms)
        return self.timing.election_ms << min(max(self._strain, self._silent_rounds), OTHER_DOUBLINGS_MAX)

    def backoff_ms(self) -> int:
        """Longer after each lost round, at random, so that rivals part."""
        self._rounds_lost = min(self._rounds_lost + 1, 10)
        retry_ms = self.timing.retry_ms
        wait_ms = retry_ms + self._chance.below(retry_ms << (self._rounds_lost + self._strain))
        return min(wait_ms, self.timing.backoff_ms_max << self._strain)

    def _stretched(self, wait_ms: int) -> int:
        return wait_ms << min(self._strain, OTHER_DOUBLINGS_MAX)
