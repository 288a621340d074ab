"""What is done to a cluster: processes that die and stand still, ways that are cut; one after the other, by dice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from millpond.testing import Ponds

Fault = Callable[[Ponds, random.Random, str], None]
"""Does it and takes it back; knows the topic whose leaders are worth a visit."""

SHORT: Final = (0.2, 1.5)
LONG: Final = (2.0, 6.0)


def _some(dice: random.Random, span: tuple[float, float]) -> None:
    time.sleep(dice.uniform(*span))


def _leader(cluster: Ponds, dice: random.Random, topic: str) -> int:
    led = [each.leader for each in cluster.partitions(topic).values() if each.leader > 0]
    return dice.choice(led) if led else dice.randrange(1, len(cluster) + 1)


def _controller(cluster: Ponds, dice: random.Random) -> int:
    known = cluster.controller
    return known if known > 0 else dice.randrange(1, len(cluster) + 1)


def kill_a_leader(cluster: Ponds, dice: random.Random, topic: str) -> None:
    node = cluster[_leader(cluster, dice, topic)]
    node.kill()
    _some(dice, SHORT)
    node.start()


def kill_the_controller(cluster: Ponds, dice: random.Random, topic: str) -> None:
    node = cluster[_controller(cluster, dice)]
    node.kill()
    _some(dice, SHORT)
    node.start()


def kill_twice(cluster: Ponds, dice: random.Random, topic: str) -> None:
    """The second time while it is starting."""
    node = cluster[dice.randrange(1, len(cluster) + 1)]
    node.kill()
    node.launch()
    _some(dice, (0.1, 0.8))
    node.kill()
    node.start()


def kill_all(cluster: Ponds, dice: random.Random, topic: str) -> None:
    cluster.kill_all()
    cluster.start()


def stop_a_leader(cluster: Ponds, dice: random.Random, topic: str) -> None:
    with cluster[_leader(cluster, dice, topic)].pause():
        _some(dice, LONG)


def stop_the_controller(cluster: Ponds, dice: random.Random, topic: str) -> None:
    with cluster[_controller(cluster, dice)].pause():
        _some(dice, LONG)


def stop_most(cluster: Ponds, dice: random.Random, topic: str) -> None:
    numbers = dice.sample(range(1, len(cluster) + 1), len(cluster) // 2 + 1)
    for number in numbers:
        cluster[number].pause()
    _some(dice, SHORT)
    for number in numbers:
        cluster[number].resume()


def roll(cluster: Ponds, dice: random.Random, topic: str) -> None:
    """Each in turn is ended in order and started again."""
    for node in cluster:
        node.restart()


def cut_one(cluster: Ponds, dice: random.Random, topic: str) -> None:
    cluster.cut(_leader(cluster, dice, topic))
    _some(dice, LONG)
    cluster.heal()


def cut_the_controller(cluster: Ponds, dice: random.Random, topic: str) -> None:
    cluster.cut(_controller(cluster, dice))
    _some(dice, LONG)
    cluster.heal()


def cut_one_way(cluster: Ponds, dice: random.Random, topic: str) -> None:
    """What it says is not heard, or it hears nothing."""
    number = _leader(cluster, dice, topic)
    rest = [node.node_id for node in cluster if node.node_id != number]
    if dice.random() < 0.5:
        cluster.cut(number, rest, one_way=True)
    else:
        cluster.cut(rest, number, one_way=True)
    _some(dice, LONG)
    cluster.heal()


def cut_all(cluster: Ponds, dice: random.Random, topic: str) -> None:
    """Nobody hears anybody."""
    for node in cluster:
        cluster.cut(node.node_id)
    _some(dice, LONG)
    cluster.heal()


def flap(cluster: Ponds, dice: random.Random, topic: str) -> None:
    number = dice.randrange(1, len(cluster) + 1)
    for _ in range(5):
        cluster.cut(number)
        _some(dice, SHORT)
        cluster.heal()
        time.sleep(dice.uniform(0.05, 0.5))


FAULTS: Final[Mapping[str, Fault]] = {
    "kill -9 a leader": kill_a_leader,
    "kill -9 the controller": kill_the_controller,
    "kill -9 one twice": kill_twice,
    "kill -9 all": kill_all,
    "SIGSTOP a leader": stop_a_leader,
    "SIGSTOP the controller": stop_the_controller,
    "SIGSTOP most": stop_most,
    "rolling restart": roll,
    "cut one off": cut_one,
    "cut the controller off": cut_the_controller,
    "cut one way": cut_one_way,
    "cut all apart": cut_all,
    "flapping": flap,
}


def plan(count: int, dice: random.Random) -> list[str]:
    """All kinds in some order, then all in another, and so on."""
    names: list[str] = []
    while len(names) < count:
        names += dice.sample([*FAULTS], len(FAULTS))
    return names[:count]
