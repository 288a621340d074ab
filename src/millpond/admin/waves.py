"""A plan of moves, run in waves: few partitions at a time, within a rate, until all are there or somebody stops it.

Nothing is kept but in the cluster itself. A run that is killed leaves some partitions on their way, which get there
without it, and perhaps a limit on the rate, which the next run takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from millpond.admin.moves import copied_bytes, elect_first, moves_under_way, try_moves
from millpond.admin.placement import Planned
from millpond.admin.throttle import Rates, clear_throttle, set_throttle
from millpond.base.errors import ErrorCode, RemoteError
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError

WAVE: Final = 20
"""How many partitions move at a time."""

LOOK_SECONDS: Final = 0.25
COUNT_SECONDS: Final = 1.0
"""To count what is copied asks every node for all that it has."""

HEARD_SECONDS: Final = 10.0
"""The controller knows first that a move has ended; within this time every node knows."""

_ENDED: Final = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Stop(Protocol):
    """Somebody's wish to stop."""

    is_asked: bool

    def wait(self, seconds: float) -> None:
        """So long, or until somebody asks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a plan is."""

    moved: int
    moves: int
    copied_bytes: int
    bytes_to_copy: int
    under_way: tuple[TopicPartition, ...]


@dataclass(slots=True)
class Outcome:
    """What became of each move of a plan."""

    moved: list[Planned] = field(default_factory=list)
    waiting: list[Planned] = field(default_factory=list)
    """Not begun."""
    called_off: list[Planned] = field(default_factory=list)
    going_on: list[Planned] = field(default_factory=list)
    """Begun, and neither ended nor called off: too few of the old replicas are in sync."""
    overtaken: list[Planned] = field(default_factory=list)
    """Ended elsewhere: somebody else has moved, called off or deleted it."""
    refused: list[tuple[Planned, str]] = field(default_factory=list)
    is_limited: bool = False
    """Whether some limit on the rate stays, because somebody's moves need it."""

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.called_off or self.going_on or self.overtaken or self.refused)


def run_moves(
    cluster: Cluster,
    moves: Sequence[Planned],
    *,
    stop: Stop,
    tell: Callable[[Progress], None] = lambda _: None,
    rate: int | None = None,
    at_once: int = WAVE,
) -> Outcome:
    """Move all of them, at `rate` bytes a second for each node that gives or takes, or as fast as it goes.

    Whoever wants to stop gets the partitions that are under way back to where they were. What an earlier run left of
    a limit is taken away; what is under way to the same target is waited for.
    """
    mine = {move.partition for move in moves}
    clear_throttle(cluster, mine if rate is None else ())
    run = _Run(cluster, moves, stop, tell, at_once, rate)
    before: Rates | None = None
    try:
        if rate is not None:
            before = set_throttle(cluster, moves, rate)
        run.go()
    except BaseException:
        # Whatever it was that ended it. Where no node answers any more the limit stays; the next run takes it away.
        with suppress(ClientError, RemoteError):
            clear_throttle(cluster, (), before)
        raise
    # Which moves have ended the controller has said; the node that is asked now may not have heard of it.
    mine -= {move.partition for move in run.outcome.going_on}
    run.outcome.is_limited = not clear_throttle(cluster, mine, before)
    return run.outcome


class _Run:
    """A plan while it runs."""

    def __init__(
        self,
        cluster: Cluster,
        moves: Sequence[Planned],
        stop: Stop,
        tell: Callable[[Progress], None],
        at_once: int,
        rate: int | None,
    ) -> None:
        self._cluster = cluster
        self._moves = moves
        self._stop = stop
        self._tell = tell
        self._at_once = at_once
        self._rate = rate
        self._under_way: dict[TopicPartition, Planned] = {}
        self._copied = 0
        self._counted_at = 0.0
        self.outcome = Outcome(waiting=list(moves))

    def go(self) -> None:
        while not self._stop.is_asked and (self.outcome.waiting or self._under_way):
            self._begin()
            self._report()
            self._stop.wait(LOOK_SECONDS)
            self._look()
        if self._under_way:
            self._call_off()
        self._report()

    def _begin(self) -> None:
        """As many as may be under way at a time."""
        waiting = self.outcome.waiting
        wave = waiting[: max(self._at_once - len(self._under_way), 0)]
        if not wave:
            return
        if self._rate is not None:
            # Again: another command, which does not know of what has yet to begin, may have taken the limit away.
            set_throttle(self._cluster, wave, self._rate)
        refusals = try_moves(self._cluster, {move.partition: move.target for move in wave})
        del waiting[: len(wave)]
        for move in wave:
            refusal = refusals.get(move.partition)
            if refusal is None:
                self._under_way[move.partition] = move
            else:
                self.outcome.refused.append((move, str(refusal)))

    def _look(self) -> None:
        """Who has got there?"""
        under_way = moves_under_way(self._cluster)
        ended = [move for partition, move in self._under_way.items() if partition not in under_way]
        if not ended:
            return
        for move in ended:
            del self._under_way[move.partition]
        self._sort(ended)

    def _sort(self, ended: list[Planned]) -> None:
        """Whether they got to where they should; and then the first replica leads."""
        deadline = time.monotonic() + HEARD_SECONDS
        left = {move.partition: move for move in ended}
        names = {partition.topic for partition in left}
        to_elect = []
        while left:
            topics = self._cluster.topics(names)
            for partition in list(left):
                topic = topics.get(partition.topic)
                info = None if topic is None else topic.partitions.get(partition.partition)
                if info is not None and info.replicas == left[partition].target:
                    self.outcome.moved.append(left.pop(partition))
                    if info.leader != info.replicas[0]:
                        to_elect.append(partition)
            if left and time.monotonic() > deadline:
                break
            if left:
                time.sleep(LOOK_SECONDS)
        self.outcome.overtaken += left.values()
        elect_first(self._cluster, to_elect)

    def _call_off(self) -> None:
        refusals = try_moves(self._cluster, dict.fromkeys(self._under_way))
        ended = []
        for partition, move in self._under_way.items():
            refusal = refusals.get(partition)
            if refusal is None:
                self.outcome.called_off.append(move)
            elif refusal.code in _ENDED:
                ended.append(move)
            else:
                self.outcome.going_on.append(move)
        self._under_way.clear()
        self._sort(ended)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._counted_at >= COUNT_SECONDS:
            self._copied = copied_bytes(self._cluster, self._under_way.values()) if self._under_way else 0
            self._counted_at = now
        done = sum(move.bytes_to_copy for move in self.outcome.moved)
        self._tell(
            Progress(
                len(self.outcome.moved),
                len(self._moves),
                min(done + self._copied, _total(self._moves)),
                _total(self._moves),
                tuple(self._under_way),
            )
        )


def _total(moves: Iterable[Planned]) -> int:
    return sum(move.bytes_to_copy for move in moves)
