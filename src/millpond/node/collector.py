"""The garbage collector of a node's process, tuned to pause the loop only briefly.

Requests create no cycles, and a partition's objects live as long as the partition: a node with thousands of them has
millions of objects, and scanning them all blocks the loop for half a second. So each collection is kept small, and
objects that survived a slow one are not scanned again.
"""

from __future__ import annotations

import gc
from typing import Final

from millpond.base.ports import Clock

THRESHOLDS: Final = (20_000, 2, 5)
"""New objects, and collections of younger generations, until the next generation is collected. With more of them,
a million objects accumulate in the middle generation, which takes as long as a full collection."""

LONG_MS: Final = 10
OLDEST: Final = 2


class Collector:
    """`calm` once, when the node has started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = 0

    @staticmethod
    def hold() -> None:
        """Collect nothing while the node starts: nearly everything created then stays."""
        gc.disable()

    def calm(self) -> None:
        """Exclude what startup created from collection, and later whatever survives."""
        gc.freeze()
        gc.enable()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    @staticmethod
    def let_go() -> None:
        """Startup has ended, successfully or not."""
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
            # They are still freed by reference counts. Only what later becomes a garbage cycle leaks.
            gc.freeze()
