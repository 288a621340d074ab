"""A recording of everything done to a node in one run, for replay: the corpus grows, so a seed is not enough."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from random import Random

from support.fuzz.pools import Pools
from support.fuzz.scenes import SCENES, Scene
from support.fuzz.target import Act, HostileLink, Target
from support.fuzz.watch import TIDY_FRAMES, Found, calm_collector


def save(path: Path, seed: int, scene: str, acts: list[Act]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps([seed, scene]) + "\n")
        for kind, number, data in acts:
            file.write(json.dumps([kind, number, data.hex()]) + "\n")


def load(path: Path) -> tuple[int, Scene, list[Act]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    seed, name = json.loads(head)
    scene = next(each for each in SCENES if each.name == name)
    return seed, scene, [(kind, number, bytes.fromhex(data)) for kind, number, data in map(json.loads, lines)]


def replay(seed: int, scene: Scene, acts: list[Act]) -> str | None:
    """Replay the recording and return what is found; None for nothing."""
    target = Target(seed, scene)
    pools = Pools(Random(0))
    links: dict[int, HostileLink | None] = {}
    try:
        target.prepare()
        # As in a campaign: a collection would count as part of the turn in which it happens.
        calm_collector()
        tidy_at = target.frames + TIDY_FRAMES
        for kind, number, data in acts:
            if target.frames >= tidy_at:
                tidy_at += TIDY_FRAMES
                target.forget_cancelled()
                gc.collect()
            _do(target, pools, links, kind, number, data)
        target.check_disk()
        if scene.spares_canary and not target.has_other_settings():
            target.check_canary()
    except Found as found:
        return str(found)
    finally:
        gc.enable()
    return None


def _do(
    target: Target, pools: Pools, links: dict[int, HostileLink | None], kind: str, number: int, data: bytes
) -> None:
    if kind == "time":
        target.pass_time(number)
        return
    if kind in ("connect", "connect deaf"):
        links[number] = target.connect(pools, reads=kind == "connect")
        return
    link = links.get(number)
    if link is None:
        # What a well-behaved client did at the end.
        return
    if kind == "deliver" and link.alive:
        # The original run has already judged the responses.
        link.answers.is_judged = False
        target.deliver(link, data, data)
    elif kind == "part":
        target.part(link)
    elif kind == "abort":
        target.abort(link)
