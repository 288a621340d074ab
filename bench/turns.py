"""`python -m bench.turns name=value …`: a node that reports the longest turn of its event loop.

A timer that fires every millisecond compares the CPU time of the loop's thread and the wall time since it fired last:
the first is the node's doing, the second is what clients waited. During a long turn another thread samples the stack
of the loop. A line on standard input requests the longest turn since the last one, as one line of JSON, with the
node's view of the cluster: a request over the wire would be a long turn itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any

from millpond.broker.broker import Broker
from millpond.config.node import node_settings
from millpond.node import serve as serving
from millpond.node.journal import LineJournal

TICK_SECONDS = 0.001
LOOK_SECONDS = 0.004
LONG_SECONDS = 0.02
"""Turns longer than this are sampled."""

LONG_CPU_MS = 50
FRAMES = 12
STACKS = 4


class Turns:
    """Measures the turns of this process's event loop. Call `begin` on the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self._ticked = time.perf_counter()
        self._cpu = time.thread_time()
        self._seen: Counter[str] = Counter()
        self._collected_ms = 0.0
        self._collecting = 0.0
        self._worst = self._nothing()
        self.broker: Broker | None = None
        """Set once it is ready."""

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, daemon=True).start()
        threading.Thread(target=self._answer, daemon=True).start()

        self._ticked, self._cpu = time.perf_counter(), time.thread_time()

        def tick() -> None:
            self._tick()
            loop.call_later(TICK_SECONDS, tick)

        tick()

    def _tick(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        cpu_ms, wall_ms = (cpu - self._cpu) * 1000, (now - self._ticked) * 1000
        with self._lock:
            worst = self._worst
            worst["wall_ms"] = max(worst["wall_ms"], wall_ms)
            worst["gc_ms"] = max(worst["gc_ms"], self._collected_ms)
            worst["long_turns"] += cpu_ms > LONG_CPU_MS
            if cpu_ms > worst["cpu_ms"]:
                worst["cpu_ms"] = cpu_ms
                worst["stacks"] = [f"{count} {stack}" for stack, count in self._seen.most_common(STACKS)]
            self._seen.clear()
            self._collected_ms = 0.0
        self._ticked, self._cpu = now, cpu

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self._collected_ms = max(self._collected_ms, (time.perf_counter() - self._collecting) * 1000)

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if time.perf_counter() - self._ticked > LONG_SECONDS:
                frame = sys._current_frames().get(self._main)
                if frame is not None:
                    with self._lock:
                        self._seen[_stack_of(frame)] += 1

    def _answer(self) -> None:
        for _ in sys.stdin:
            with self._lock:
                worst, self._worst = self._worst, self._nothing()
            print(json.dumps({**worst, **_state_of(self.broker)}), flush=True)

    @staticmethod
    def _nothing() -> dict[str, Any]:
        return {"cpu_ms": 0.0, "wall_ms": 0.0, "gc_ms": 0.0, "long_turns": 0, "stacks": []}


def _state_of(broker: Broker | None) -> dict[str, Any]:
    """The number of replicas in sync, of partitions led by each node, and of partitions open here."""
    while broker is not None:
        try:
            partitions = [each for topic in list(broker.image.topics.values()) for each in list(topic.partitions)]
        except RuntimeError:
            # The loop changed them meanwhile.
            continue
        return {
            "in_sync": sum(len(each.isr) for each in partitions),
            "led": Counter(each.leader for each in partitions),
            "open": len(broker.partitions),
            "controller": broker.controller.leader_id,
        }
    return {}


def _stack_of(frame: FrameType) -> str:
    """The innermost frames, in that order."""
    names = []
    at: FrameType | None = frame
    while at is not None and len(names) < FRAMES:
        names.append(f"{at.f_code.co_filename.rpartition('millpond/')[2]}:{at.f_code.co_name}:{at.f_lineno}")
        at = at.f_back
    return " < ".join(names)


def main() -> None:
    texts = dict(each.split("=", 1) for each in sys.argv[1:])
    turns = Turns()
    new_loop = serving.new_loop

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        # Only once the loop runs: the start is a separate measurement.
        loop.call_soon(turns.begin, loop)
        return loop

    serving.new_loop = watched_loop
    serving.serve(node_settings(texts), LineJournal(), lambda broker: setattr(turns, "broker", broker))


if __name__ == "__main__":
    main()
