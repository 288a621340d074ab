"""One seeded run: virtual time, an unreliable network, and a trace to read when a check fails.

The same seed is the same run: one generator makes all decisions, and no real clock is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import ClassVar

STORY_LINES = 400
LOOK_MS = 250
"""How often a healed run is checked for remaining problems."""
WELL_MS = 3_000
"""How long a run must be without problems before it ends: longer than any timer of the machines."""
NOT_HEALED = "healed, and yet not well"


class Violation(Exception):
    """A violated invariant; the first words name it."""


@dataclass(slots=True)
class Weather:
    """How the network and the disks behave at present."""

    loss: float = 0.0
    copies: float = 0.0
    delay_ms_max: int = 5
    sync_ms_max: int = 5


@dataclass(slots=True)
class Outcome:
    """The result of a run; `violation` is None if no invariant was violated."""

    seed: int
    violation: str | None = None
    events: int = 0
    committed: int = 0
    acknowledged: int = 0
    elections: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    trace: int = 0
    """Equal for equal runs."""
    story: list[str] = field(default_factory=list)


class Host:
    """A machine in a run, which can be paused and restarted."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.life = 0
        self.paused_until_ms = 0


class Run:
    """Time and network of one run. A scenario adds its hosts, what they do, and its faults (`_fault_…`)."""

    faults: ClassVar[tuple[str, ...]] = ()
    trouble_ms = 12_000
    """How long faults happen; after that everything is healed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.chance = self.random.random
        self.now_ms = 0
        self.weather = Weather()
        self.outcome = Outcome(seed)
        self._queue: list[tuple[int, int, Host | None, Callable[[], None]]] = []
        self._count = 0
        self._cuts: set[tuple[int, int]] = set()
        self._story: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=STORY_LINES)

    # Time.

    def at(self, time_ms: int, host: Host | None, action: Callable[[], None]) -> None:
        """Act at this time, or, if the host is paused by then, when it resumes."""
        self._count += 1
        heappush(self._queue, (time_ms, self._count, host, action))

    def later(self, delay_ms: int, host: Host | None, action: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._count, host, action))

    def below(self, bound: int) -> int:
        """A random integer from 0 to `bound` - 1; faster than `randrange`."""
        return int(self.chance() * bound)

    def run_until(self, end_ms: int) -> None:
        queue, events = self._queue, 0
        while queue and queue[0][0] <= end_ms:
            time_ms, _, host, action = heappop(queue)
            if time_ms > self.now_ms:
                self.now_ms = time_ms
            if host is not None and host.paused_until_ms > self.now_ms:
                self.at(host.paused_until_ms, host, action)
                continue
            events += 1
            action()
        self.outcome.events += events
        self.now_ms = end_ms

    def run_until_well(self, within_ms: int, find_problem: Callable[[], str | None]) -> None:
        """Run until `find_problem` has found nothing for a while; a problem at the end is a violation."""
        end_ms, well_since_ms = self.now_ms + within_ms, self.now_ms
        result: str | None = None
        while self.now_ms < end_ms and self.now_ms - well_since_ms < WELL_MS:
            self.run_until(self.now_ms + LOOK_MS)
            result = find_problem()
            if result is not None:
                well_since_ms = self.now_ms
        if result is not None:
            raise Violation(f"{NOT_HEALED}: {result}")

    # The network.

    def carry(self, sender: int, receiver: int, host: Host | None, deliver: Callable[[], None]) -> None:
        """Deliver a message between nodes: never, once or twice, sooner or later, if `host` is up."""
        if self._cuts and (sender, receiver) in self._cuts:
            return
        weather = self.weather
        for _ in range(2 if self.chance() < weather.copies else 1):
            if self.chance() >= weather.loss:
                self.later(self.below(weather.delay_ms_max), host, deliver)

    def cut(self, pairs: set[tuple[int, int]]) -> None:
        """Drop messages from the first to the second node of each pair for a while."""
        mended = sorted(pairs)
        self._cuts |= pairs
        self.later(self.random.choice((200, 1000, 4000)), None, lambda: self._cuts.difference_update(mended))

    def isolate(self, alone: int, nodes: list[int]) -> None:
        self.cut({pair for other in nodes if other != alone for pair in ((alone, other), (other, alone))})

    def split(self, nodes: list[int]) -> None:
        side = {node for node in nodes if self.random.random() < 0.5}
        self.cut({(one, other) for one in nodes for other in nodes if (one in side) != (other in side)})

    def calm(self) -> None:
        self.note("--- healed")
        self.weather = Weather()
        self._cuts.clear()

    # Faults.

    def plan_faults(self) -> None:
        self._fault_bad_network()
        self._fault_slow_disk()
        for _ in range(self.random.choice((3, 10, 30, 60))):
            self.at(self.random.randrange(self.trouble_ms), None, self._fault)

    def _fault(self) -> None:
        kind = self.random.choice(self.faults)
        self.outcome.faults[kind] = self.outcome.faults.get(kind, 0) + 1
        self.note("---", kind)
        getattr(self, f"_fault_{kind}")()

    def _fault_bad_network(self) -> None:
        self.weather.loss = self.random.choice((0.0, 0.0, 0.05, 0.2))
        self.weather.copies = self.random.choice((0.0, 0.1, 0.5))
        self.weather.delay_ms_max = self.random.choice((2, 20, 100, 400))

    def _fault_slow_disk(self) -> None:
        self.weather.sync_ms_max = self.random.choice((2, 20, 100, 500))

    # The trace.

    def note(self, *parts: object) -> None:
        """Add a line to the trace; it is formatted only if it will be printed."""
        self._story.append((self.now_ms, parts))

    def trace(self, *numbers: int) -> None:
        self.outcome.trace = hash((self.outcome.trace, self.now_ms, *numbers))

    def play(self, live: Callable[[], None]) -> Outcome:
        try:
            live()
        except Violation as violation:
            self.outcome.violation = str(violation)
            self.outcome.story = [f"{time_ms:6} {' '.join(map(str, parts))}" for time_ms, parts in self._story]
        return self.outcome
