"""How long each API holds the loop for lists of the maximum length: each of its lists in turn."""

from __future__ import annotations

import gc
from random import Random
from typing import NamedTuple

from millpond.wire.header import NAMES
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.frames import FrameMaker
from support.fuzz.pools import Pools
from support.fuzz.scenes import SERVED, Scene
from support.fuzz.target import Target
from support.fuzz.watch import Found, Slow, calm_collector

LISTS = 4
TRIES = 2
BYTES_MAX = 15 << 20


class Held(NamedTuple):
    """What one request took."""

    longest_ms: float
    api: str
    version: int
    list_number: int
    size: int
    outcome: str
    most_items: int
    """How many items were handled in one turn of the loop."""


def sweep(scene: Scene, items: int, seed: int = 0, tries: int = TRIES) -> list[Held]:
    """The longest turn of each request, in descending order."""
    draw = Random(seed)
    held: list[Held] = []
    target = Target(seed, scene)
    target.prepare()
    calm_collector()
    for key in SERVED:
        maker = FrameMaker(draw, Pools(draw), (key,))
        for number in range(1, LISTS + 1):
            for size in (1, *[items] * tries):
                if not target.node.is_up:
                    target = Target(seed, scene)
                    target.prepare()
                maker.long_items = size
                data = b"".join(token[2] for token in maker.long(key, number))
                if len(data) < BYTES_MAX:
                    held.append(_held(target, key, number, data))
    gc.enable()
    return sorted(held, reverse=True)


def _held(target: Target, key: int, number: int, data: bytes) -> Held:
    answers = Answers(Pools(Random(0)))
    answers.is_judged = False
    link = target._accepted("10.9.9.9:1", answers, target._scene.principal)
    assert link is not None
    target.turn.longest_seconds = 0.0
    target.turn.most_items = 0
    outcome = ""
    try:
        target.deliver(link, LENGTH.pack(len(data)) + data, data)
        target.pass_time(3_000)
    except Slow:
        outcome = "too long"
    except Found as found:
        outcome = str(found)
    link.abort()
    outcome = outcome or link.fault[:80] or f"{answers.count} answered"
    longest_ms = 1000 * target.turn.longest_seconds
    version = int.from_bytes(data[2:4], "big")
    return Held(longest_ms, NAMES[key], version, number, len(data), outcome, target.turn.most_items)
