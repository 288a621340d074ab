"""Random faults on a cluster, one at a time.

Processes die or stop, links are cut, disks are full, slow, wiped or damaged, descriptors run out.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from millpond.remote.errors import ClientError
from millpond.testing import PondNode, Ponds
from millpond.testing.process_node import NodeEnded
from support.cluster_disks import Disks

SHORT: Final = (0.2, 1.5)
LONG: Final = (2.0, 6.0)
MINUTE: Final = (15.0, 60.0)
BREAKING: Final = (3.0, 4.0)
"""How long a cut lasts that makes nodes give up their connections."""
WHOLE_SECONDS_MAX: Final = 60.0
TAIL_BYTES: Final = 2_000
"""How close to its end a log is damaged: what a node does not scan at startup it trusts."""


@dataclass
class FaultTarget:
    """The cluster that faults are injected into."""

    cluster: Ponds
    dice: random.Random
    topics: tuple[str, ...]
    """Faults target the leaders of the first one."""
    disks: Disks | None = None

    def wait(self, span: tuple[float, float]) -> None:
        time.sleep(self.dice.uniform(*span))

    def any(self) -> PondNode:
        return self.cluster[self.dice.randrange(1, len(self.cluster) + 1)]

    def leader(self) -> PondNode:
        led: list[int] = []
        with contextlib.suppress(ClientError):
            led = [each.leader for each in self.cluster.partitions(self.topics[0]).values() if each.leader > 0]
        return self.cluster[self.dice.choice(led)] if led else self.any()

    def controller(self) -> PondNode:
        with contextlib.suppress(ClientError):
            if (known := self.cluster.controller) > 0:
                return self.cluster[known]
        return self.any()

    def wait_until_whole(self) -> None:
        """Wait until every replica is in sync: if one is damaged, two others have everything."""
        for topic in self.topics:
            self.cluster.wait_until_in_sync(topic, WHOLE_SECONDS_MAX)


Fault = Callable[[FaultTarget], None]
"""Injects a fault and reverts it."""


def revive(node: PondNode) -> None:
    """Restart a node that has exited, as an operator would."""
    if not node.is_running:
        node.kill()
        node.start()


def kill_a_leader(target: FaultTarget) -> None:
    node = target.leader()
    node.kill()
    target.wait(SHORT)
    node.start()


def kill_the_controller(target: FaultTarget) -> None:
    node = target.controller()
    node.kill()
    target.wait(SHORT)
    node.start()


def kill_twice(target: FaultTarget) -> None:
    """The second time while it is starting."""
    node = target.any()
    node.kill()
    node.launch()
    target.wait((0.1, 0.8))
    node.kill()
    node.start()


def kill_all(target: FaultTarget) -> None:
    target.cluster.kill_all()
    target.cluster.start()


def kill_most(target: FaultTarget) -> None:
    nodes = target.dice.sample(list(target.cluster), len(target.cluster) // 2 + 1)
    for node in nodes:
        node.kill()
    target.wait(SHORT)
    target.cluster.start()


def stop_a_leader(target: FaultTarget) -> None:
    with target.leader().pause():
        target.wait(LONG)


def stop_the_controller(target: FaultTarget) -> None:
    with target.controller().pause():
        target.wait(LONG)


def stop_for_a_minute(target: FaultTarget) -> None:
    """A leader or the controller is stopped for up to a minute, while clients wait on its sockets."""
    node = target.leader() if target.dice.random() < 0.5 else target.controller()
    with node.pause():
        target.wait(MINUTE)


def stop_most(target: FaultTarget) -> None:
    nodes = target.dice.sample(list(target.cluster), len(target.cluster) // 2 + 1)
    for node in nodes:
        node.pause()
    target.wait(SHORT)
    for node in nodes:
        node.resume()


def roll(target: FaultTarget) -> None:
    """Each node in turn is shut down cleanly and restarted."""
    for node in target.cluster:
        node.restart()


def cut_one(target: FaultTarget) -> None:
    target.cluster.cut(target.leader().node_id)
    target.wait(LONG)
    target.cluster.heal()


def cut_the_controller(target: FaultTarget) -> None:
    target.cluster.cut(target.controller().node_id)
    target.wait(LONG)
    target.cluster.heal()


def cut_in_two(target: FaultTarget) -> None:
    """The majority is on one side, the controller and a leader on the other."""
    numbers = [node.node_id for node in target.cluster]
    first = [target.controller().node_id, target.leader().node_id, *target.dice.sample(numbers, len(numbers))]
    target.cluster.cut(list(dict.fromkeys(first))[: (len(numbers) - 1) // 2])
    target.wait(LONG)
    target.cluster.heal()


def reject_one(target: FaultTarget) -> None:
    """Connections between a leader and the other nodes are refused."""
    target.cluster.reject(target.leader().node_id)
    target.wait(LONG)
    target.cluster.heal()


def reject_the_controller(target: FaultTarget) -> None:
    target.cluster.reject(target.controller().node_id)
    target.wait(LONG)
    target.cluster.heal()


def reject_in_two(target: FaultTarget) -> None:
    """The controller and a leader are on the smaller side; both sides refuse each other's connections."""
    numbers = [node.node_id for node in target.cluster]
    first = [target.controller().node_id, target.leader().node_id, *target.dice.sample(numbers, len(numbers))]
    target.cluster.reject(list(dict.fromkeys(first))[: (len(numbers) - 1) // 2])
    target.wait(LONG)
    target.cluster.heal()


def cut_one_way(target: FaultTarget) -> None:
    """A node's outgoing or its incoming traffic is lost."""
    number = target.leader().node_id
    rest = [node.node_id for node in target.cluster if node.node_id != number]
    if target.dice.random() < 0.5:
        target.cluster.cut(number, rest, one_way=True)
    else:
        target.cluster.cut(rest, number, one_way=True)
    target.wait(LONG)
    target.cluster.heal()


def cut_all(target: FaultTarget) -> None:
    """No node reaches another."""
    for node in target.cluster:
        target.cluster.cut(node.node_id)
    target.wait(LONG)
    target.cluster.heal()


def cut_clients(target: FaultTarget) -> None:
    """Nodes reach each other, but clients cannot reach one of them."""
    target.cluster.cut_clients(target.leader().node_id)
    target.wait(LONG)
    target.cluster.heal()


def flap(target: FaultTarget) -> None:
    number = target.any().node_id
    for _ in range(5):
        target.cluster.cut(number)
        target.wait(SHORT)
        target.cluster.heal()
        target.wait((0.05, 0.5))


def fill_disk(target: FaultTarget) -> None:
    """The disk of a leader or of the controller; the node exits by itself."""
    assert target.disks is not None
    node = target.leader() if target.dice.random() < 0.7 else target.controller()
    target.disks.fill(node.node_id)
    target.wait(LONG)
    target.disks.make_room(node.node_id)
    revive(node)


def kill_on_full_disk(target: FaultTarget) -> None:
    assert target.disks is not None
    node = target.leader()
    target.disks.fill(node.node_id)
    target.wait(SHORT)
    node.kill()
    node.launch()
    target.wait(SHORT)
    target.disks.make_room(node.node_id)
    if node.is_running:
        with contextlib.suppress(NodeEnded):
            node.wait_until_ready()
    revive(node)


def slow_syncs(target: FaultTarget) -> None:
    assert target.disks is not None
    with target.disks.bad_syncs(target.leader().node_id, f"slow {target.dice.choice([100, 400, 1500])}"):
        target.wait(LONG)


def failed_syncs(target: FaultTarget) -> None:
    """Metadata too, which is synced at every change: the node exits when it cannot write it."""
    assert target.disks is not None
    target.wait_until_whole()
    node = target.leader()
    with target.disks.bad_syncs(node.node_id, "fail"):
        with contextlib.suppress(KafkaException):
            # This node may be the one to decide on it, and no longer can.
            target.cluster.create_topic(f"unsynced-{target.dice.getrandbits(32)}", 1)
        target.wait(LONG)
    revive(node)


@contextlib.contextmanager
def few_descriptors(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    now = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (now, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def exhaust_descriptors(target: FaultTarget) -> None:
    """The node can open neither files nor connections; the others drop the connections that they have to it."""
    node = target.leader()
    with few_descriptors(node.pid):
        target.cluster.cut(node.node_id)
        target.wait(BREAKING)
        target.cluster.heal()
        target.wait(SHORT)
    revive(node)


def wipe(target: FaultTarget) -> None:
    """The node's folder is empty when it returns."""
    target.wait_until_whole()
    node = target.leader()
    node.kill()
    for each in node.folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    target.wait(SHORT)
    node.start()


def damage(target: FaultTarget) -> None:
    """A bit in the node's log has flipped when it returns."""
    target.wait_until_whole()
    node = target.leader()
    node.kill()
    logs = [path for path in node.folder.glob(f"{target.topics[0]}-*/*.log") if path.stat().st_size]
    for path in target.dice.sample(sorted(logs), min(len(logs), 2)):
        flip(path, target.dice)
    target.wait(SHORT)
    node.start()


def flip(path: Path, dice: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(dice.randrange(max(size - TAIL_BYTES, 0), size))
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


FAULTS: Final[Mapping[str, Fault]] = {
    "kill -9 a leader": kill_a_leader,
    "kill -9 the controller": kill_the_controller,
    "kill -9 one twice": kill_twice,
    "kill -9 most": kill_most,
    "kill -9 all": kill_all,
    "SIGSTOP a leader": stop_a_leader,
    "SIGSTOP the controller": stop_the_controller,
    "SIGSTOP for up to a minute": stop_for_a_minute,
    "SIGSTOP most": stop_most,
    "rolling restart": roll,
    "cut one off": cut_one,
    "cut the controller off": cut_the_controller,
    "cut in two": cut_in_two,
    "reject one": reject_one,
    "reject the controller": reject_the_controller,
    "reject in two": reject_in_two,
    "cut one way": cut_one_way,
    "cut all apart": cut_all,
    "cut clients off": cut_clients,
    "flapping": flap,
    "full disk": fill_disk,
    "full disk, kill -9": kill_on_full_disk,
    "slow syncs": slow_syncs,
    "failed syncs": failed_syncs,
    "no descriptors": exhaust_descriptors,
    "wiped folder": wipe,
    "damaged batch": damage,
}
NEED_ROOM: Final = ("full disk", "full disk, kill -9")
NEED_SYNCS: Final = ("slow syncs", "failed syncs")


def possible(disks: Disks | None) -> list[str]:
    """The faults that are available here."""
    missing: set[str] = set()
    if disks is None or not disks.can_fill:
        missing.update(NEED_ROOM)
    if disks is None or not disks.can_spoil_syncs:
        missing.update(NEED_SYNCS)
    return [name for name in FAULTS if name not in missing]


def plan(count: int, names: list[str], dice: random.Random) -> list[str]:
    """All kinds in random order, then all again in another order, and so on."""
    faults: list[str] = []
    while len(faults) < count:
        faults += dice.sample(names, len(names))
    return faults[:count]
