"""The garbage collector of a node's process, kept from standing in everybody's way.

Requests make no cycles, and what a node knows of its partitions lives as long as they do: a node with thousands of
them has millions of objects, and to walk them all takes the loop half a second. So each collection is kept small, and
what one has walked in vain that took long is not walked again.
"""

from __future__ import annotations

import gc
from typing import Final

from millpond.base.ports import Clock

THRESHOLDS: Final = (20_000, 2, 5)
"""New objects, and collections of the young, until the next older ones have their turn. More of them, and a million
objects of middle age come together, which takes as long as everything."""

LONG_MS: Final = 10
OLDEST: Final = 2


class Collector:
    """`calm` once, when the node has started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = 0

    @staticmethod
    def hold() -> None:
        """Collect nothing while the node starts, code and all: nearly everything that is made then stays."""
        gc.disable()

    def calm(self) -> None:
        """What a start leaves behind need not be walked at all; nor again what comes later and stays."""
        gc.freeze()
        gc.enable()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    @staticmethod
    def let_go() -> None:
        """The start has come to its end, whichever."""
        gc.enable()

    def stop(self) -> None:
        self.let_go()
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, facts: dict[str, int]) -> None:
        if facts["generation"] < OLDEST:
            return
        if phase == "start":
            self._began_ms = self._clock.monotonic_ms()
        elif self._clock.monotonic_ms() - self._began_ms >= LONG_MS:
            # They are freed by their counts as ever. Only what becomes a cycle of garbage later on stays for good.
            gc.freeze()
