"""Runs a plan of moves in waves: a few partitions at a time, within a rate, until all have moved or it is stopped.

All state is in the cluster itself. A run that is killed leaves moves under way, which complete without it, and
perhaps a rate limit, which the next run removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from millpond.admin.moves import copied_bytes, elect_first, moves_under_way, try_moves
from millpond.admin.placement import PlannedMove
from millpond.admin.throttle import Rates, clear_throttle, set_throttle
from millpond.base.errors import ErrorCode, RemoteError
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError

WAVE: Final = 20
"""Partitions that move at a time."""

LOOK_SECONDS: Final = 0.25
COUNT_SECONDS: Final = 1.0
"""Counting the copied bytes asks every node for all its partitions."""

PROPAGATION_SECONDS: Final = 10.0
"""The controller sees the end of a move first; within this time every node does."""

_ENDED: Final = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Stop(Protocol):
    """A request to stop."""

    is_requested: bool

    def wait(self, seconds: float) -> None:
        """Waits this long, or until a stop is requested."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a plan."""

    moved: int
    moves: int
    copied_bytes: int
    bytes_to_copy: int
    under_way: tuple[TopicPartition, ...]


@dataclass(slots=True)
class Outcome:
    """The outcome of each move of a plan."""

    moved: list[PlannedMove] = field(default_factory=list)
    waiting: list[PlannedMove] = field(default_factory=list)
    """Not begun."""
    called_off: list[PlannedMove] = field(default_factory=list)
    going_on: list[PlannedMove] = field(default_factory=list)
    """Started, and neither completed nor cancelled: too few of the old replicas are in sync."""
    overtaken: list[PlannedMove] = field(default_factory=list)
    """Moved, cancelled or deleted by another command."""
    refused: list[tuple[PlannedMove, str]] = field(default_factory=list)
    is_limited: bool = False
    """Whether a rate limit stays, because other moves need it."""

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.called_off or self.going_on or self.overtaken or self.refused)


def run_moves(
    cluster: Cluster,
    moves: Sequence[PlannedMove],
    *,
    stop: Stop,
    tell: Callable[[Progress], None] = lambda _: None,
    rate: int | None = None,
    at_once: int = WAVE,
) -> Outcome:
    """Runs all moves, at `rate` bytes per second for each node, in and out, or without a limit.

    A stop cancels the moves that are under way. A rate limit of an earlier run is removed; moves that are already
    under way to the same target are waited for.
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
        # Whatever the outcome. If no node answers, the limit stays and the next run removes it.
        with suppress(ClientError, RemoteError):
            clear_throttle(cluster, (), before)
        raise
    # The controller has reported the completed moves; the node that answers now may be behind.
    mine -= {move.partition for move in run.outcome.going_on}
    run.outcome.is_limited = not clear_throttle(cluster, mine, before)
    return run.outcome


class _Run:
    """A running plan."""

    def __init__(
        self,
        cluster: Cluster,
        moves: Sequence[PlannedMove],
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
        self._under_way: dict[TopicPartition, PlannedMove] = {}
        self._copied = 0
        self._counted_at = 0.0
        self.outcome = Outcome(waiting=list(moves))

    def go(self) -> None:
        while not self._stop.is_requested and (self.outcome.waiting or self._under_way):
            self._begin()
            self._report()
            self._stop.wait(LOOK_SECONDS)
            self._look()
        if self._under_way:
            self._call_off()
        self._report()

    def _begin(self) -> None:
        """Starts as many moves as may be under way at a time."""
        waiting = self.outcome.waiting
        wave = waiting[: max(self._at_once - len(self._under_way), 0)]
        if not wave:
            return
        if self._rate is not None:
            # Again: another command, which does not know the moves that have yet to start, may have removed the
            # limit.
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
        """Finds the completed moves."""
        under_way = moves_under_way(self._cluster)
        ended = [move for partition, move in self._under_way.items() if partition not in under_way]
        if not ended:
            return
        for move in ended:
            del self._under_way[move.partition]
        self._sort(ended)

    def _sort(self, ended: list[PlannedMove]) -> None:
        """Checks that they reached their targets, and elects the first replica."""
        deadline = time.monotonic() + PROPAGATION_SECONDS
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


def _total(moves: Iterable[PlannedMove]) -> int:
    return sum(move.bytes_to_copy for move in moves)
