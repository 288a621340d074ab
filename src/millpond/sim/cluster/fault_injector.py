"""The faults of a cluster, one small function per kind.

Records that are only in page caches survive the loss of as many machines as the topic's settings allow, so power cuts
and wiped disks wait until all replicas are in sync. Where every topic flushes before it acknowledges, power cuts wait
only until an earlier loss of a disk is known: a torn end of a log counts as a loss, and two at once are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from uuid import UUID

from millpond.log.names import LOG
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.plan import FaultPlan
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire.batch import HEADER_BYTES

FLAP_MS = 150
STUCK_SHARE = 0.3
FULL_DISK_ROOM_BYTES_MAX = 20_000
SYNC_TARGETS = ("", "", "topic", "__cluster_metadata", "quorum-state", "checkpoint", ".log")
READ_TARGETS = ("", "topic", "__cluster_metadata", ".log", ".index")
COPY_SHARE = 0.5
"""How often the duplicate process has a copy of the node's folder, not an empty one."""
RATES = (0.9, 1.0, 1.1)
JUMPS_MS = (-7_200_000, -1_000, 1_000, 60_000)
YEARS_MS = 10 * 365 * 86_400_000

Way = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Corruption:
    """A batch that is corrupt on one node."""

    node_id: int
    topic_id: UUID
    index: int
    offset: int


class FaultInjector:
    """Injects the planned faults into the nodes of a cluster."""

    def __init__(self, cluster: SimCluster, clients: Iterable[str], *, is_synced_first: bool) -> None:
        self.cluster = cluster
        self.counts: dict[str, int] = {}
        self._sim: SimWorld = cluster.sim
        self._clients = tuple(clients)
        self._is_synced_first = is_synced_first
        self._lost: dict[int, int] = {}
        """Nodes that may have lost records, with the broker epoch of the incarnation that did."""
        self._lost_disks: dict[int, int] = {}
        """Those of them whose disk was wiped or replaced by an old copy."""
        self.rot: Corruption | None = None
        """At most once in a run; after it no machine loses anything else, which would be two losses at once."""
        self._duplicates: dict[int, SimNode] = {}
        self._over = False

    def schedule(self, faults: Iterable[FaultPlan]) -> None:
        for fault in faults:
            self._sim.clock.call_later(fault.at_ms, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def end(self) -> None:
        """Stop injecting faults, and heal the world."""
        self._over = True
        self.cluster.note("--- all is healed")
        self._sim.network.heal()
        for duplicate in self._duplicates.values():
            if duplicate.is_up:
                duplicate.crash()
        for node_id, node in self.cluster.nodes.items():
            self.cluster.resume(node_id)
            node.disk.heal()
            if node.is_up:
                node.workers.stuck_share = 0.0
                node.workers_delay_ms = None
        self.cluster.start_now()

    def may_have_lost(self, node_id: int) -> bool:
        """Whether the node lost records and has not yet registered again and reported so."""
        return self._is_untold(self._lost, node_id)

    def _is_untold(self, losses: dict[int, int], node_id: int) -> bool:
        lost_epoch = losses.get(node_id)
        image = self.cluster.image
        if lost_epoch is None:
            return False
        if image is None:
            return True
        broker = image.brokers.get(node_id)
        return broker is None or broker.epoch <= lost_epoch

    # Choosing

    def _strike(self, fault: FaultPlan) -> None:
        if self._over:
            return
        random = Random(fault.dice)
        self.cluster.note(f"--- {fault.kind} for {fault.lasts_ms} ms")
        strike: Callable[[FaultPlan, Random], bool] = {
            "power cut": self._power_cut,
            "kill": self._kill,
            "kill of a leader": self._kill_of_a_leader,
            "long absence": self._long_absence,
            "kill of the controller": self._kill_of_the_controller,
            "all killed": self._all_killed,
            "blackout": self._blackout,
            "stop": self._stop,
            "pause": self._pause,
            "pause of a leader": self._pause_of_a_leader,
            "pause of the controller": self._pause_of_the_controller,
            "suspension": self._suspension,
            "suspension of a leader": self._suspension_of_a_leader,
            "suspension of the controller": self._suspension_of_the_controller,
            "isolation": self._isolation,
            "isolation of a leader": self._isolation_of_a_leader,
            "one way cut": self._one_way_cut,
            "split": self._split,
            "rejecting isolation": self._rejecting_isolation,
            "rejecting isolation of a leader": self._rejecting_isolation_of_a_leader,
            "rejecting isolation of the controller": self._rejecting_isolation_of_the_controller,
            "rejecting split": self._rejecting_split,
            "flapping": self._flapping,
            "slow ways": self._slow_ways,
            "lossy ways": self._lossy_ways,
            "resets": self._resets,
            "slow disk": self._slow_disk,
            "stuck disk": self._stuck_disk,
            "full disk": self._full_disk,
            "failing sync": self._failing_sync,
            "failing reads": self._failing_reads,
            "no more open files": self._no_more_open_files,
            "clock rate": self._clock_rate,
            "clock jump": self._clock_jump,
            "clock years off": self._clock_years_off,
            "wiped disk": self._wiped_disk,
            "old disk": self._old_disk,
            "second process": self._second_process,
            "bit rot": self._bit_rot,
        }[fault.kind]
        if strike(fault, random):
            self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        else:
            self.cluster.note("    not now")

    def _later(self, fault: FaultPlan, undo: Callable[[], None]) -> None:
        self._sim.clock.call_later(fault.lasts_ms, undo)

    def _any(self, random: Random) -> int | None:
        nodes = [node_id for node_id, _ in self.cluster.running()]
        # Draw exactly once, whichever nodes are up, so that what follows depends on the fault alone.
        luck = random.random()
        return nodes[int(luck * len(nodes))] if nodes else None

    def _leader(self, random: Random) -> int | None:
        image = self.cluster.image
        luck = random.random()
        if image is None:
            return None
        leaders = [
            partition.leader
            for topic in image.topics.values()
            for partition in topic.partitions
            if partition.leader in self.cluster.nodes
        ]
        leader = leaders[int(luck * len(leaders))] if leaders else None
        return leader if leader is not None and leader in dict(self.cluster.running()) else None

    def _controller(self, _: Random) -> int | None:
        controller_id = self.cluster.controller_id
        return controller_id if controller_id in dict(self.cluster.running()) else None

    def _name(self, node_id: int) -> str:
        return self.cluster.nodes[node_id].name

    # Nodes that go down

    def _power_cut(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None or not self._may_lose_power():
            return False
        self._cut_power(node_id, fault.lasts_ms if fault.dice % 2 else 0)
        return True

    def _cut_power(self, node_id: int, rest_ms: int) -> None:
        if not self._is_synced_first:
            self._note_loss(node_id)
        self.cluster.crash(node_id, rest_ms)

    def _note_loss(self, node_id: int, *, of_disk: bool = False) -> None:
        image = self.cluster.image
        broker = image.brokers.get(node_id) if image is not None else None
        for losses in (self._lost, self._lost_disks) if of_disk else (self._lost,):
            losses[node_id] = max(broker.epoch if broker is not None else -1, losses.get(node_id, -1))

    def _may_lose_power(self) -> bool:
        return self.rot is None and (self._may_lose_unsynced() or self.is_whole())

    def _may_lose_unsynced(self) -> bool:
        """Whether a power cut of any number of nodes loses nothing that was promised."""
        return self._is_synced_first and not any(self._is_untold(self._lost_disks, each) for each in self._lost_disks)

    def is_whole(self) -> bool:
        """Whether every node is up, no loss is unreported, and every replica is in sync."""
        image = self.cluster.image
        if self.rot is not None or image is None or len(dict(self.cluster.running())) < len(self.cluster.nodes):
            return False
        return all(
            image.is_active(node_id) and not self.may_have_lost(node_id) for node_id in self.cluster.nodes
        ) and (
            all(
                set(partition.isr) == set(partition.replicas)
                for topic in image.topics.values()
                for partition in topic.partitions
            )
        )

    def _blackout(self, fault: FaultPlan, random: Random) -> bool:
        """All machines lose power at once; only flushed records must survive."""
        if self.rot is not None or not self._may_lose_unsynced():
            return False
        for node_id, node in self.cluster.nodes.items():
            if node.is_up:
                self._cut_power(node_id, random.choice((0, fault.lasts_ms)))
        return True

    def _wiped_disk(self, fault: FaultPlan, random: Random) -> bool:
        """A machine comes back with an empty disk, if the others have all of its records."""
        node_id = self._any(random)
        if node_id is None or not self.is_whole() or not self._can_be_spared(node_id):
            return False
        self._note_loss(node_id, of_disk=True)
        self._cut_power(node_id, fault.lasts_ms)
        self.cluster.note(f"node {node_id} gets an empty disk")
        self._sim.wipe(self._name(node_id))
        return True

    def _can_be_spared(self, node_id: int) -> bool:
        """Whether the others can do without its disk; of two voters, both are needed."""
        controller_id = self.cluster.controller_id
        if len(self.cluster.nodes) == 1 or controller_id is None:
            return False
        voters = [each.node_id for each in self.cluster.nodes[controller_id].broker.controller.host.voters]
        return node_id not in voters or len(voters) > 2

    def _old_disk(self, fault: FaultPlan, random: Random) -> bool:
        """A node's folder is copied while it runs and restored later, when the others can do without the node."""
        node_id = self._any(random)
        if node_id is None or len(self.cluster.nodes) == 1:
            return False
        contents = self.cluster.nodes[node_id].disk.contents()
        rest_ms = random.choice((0, 500))

        def put_back() -> None:
            node = self.cluster.nodes[node_id]
            if self._over or not node.is_up or not self.is_whole() or not self._can_be_spared(node_id):
                self.cluster.note(f"node {node_id} keeps its disk")
                return
            self._note_loss(node_id, of_disk=True)
            self.cluster.kill(node_id, rest_ms)
            self.cluster.note(f"node {node_id} gets an old copy of its disk")
            self._sim.roll_back(self._name(node_id), contents)

        self._later(fault, put_back)
        return True

    def _second_process(self, fault: FaultPlan, random: Random) -> bool:
        """A second process with the node's id and an empty or copied folder follows the metadata.

        It never registers: if the node were isolated for a session meanwhile, it would lose its registration to the
        duplicate, and that is a wiped disk, which must wait until the others can do without the node.
        """
        node_id = self._any(random)
        if node_id is None or len(self.cluster.nodes) < 3:
            return False
        before = self._duplicates.get(node_id)
        if before is not None and before.is_up:
            return False
        name = f"duplicate{node_id}-{fault.at_ms}"
        texts = {**self.cluster.nodes[node_id].texts, "listen": f"{name}:{PORT}"}
        duplicate = self._duplicates[node_id] = SimNode(self._sim, name, texts)
        if random.random() < COPY_SHARE:
            self._sim.host(name).disk.roll_back(self.cluster.nodes[node_id].disk.contents())
        if not duplicate.start():
            return False
        duplicate.broker.lifecycle.stop()
        self.cluster.note(f"node {node_id} runs twice")

        def end() -> None:
            if duplicate.is_up:
                duplicate.crash()

        self._later(fault, end)
        return True

    def _bit_rot(self, fault: FaultPlan, random: Random) -> bool:
        """One bit flips on one disk, in records that every replica has."""
        node_id, luck, depth, bit = self._any(random), random.random(), random.random(), random.randrange(8)
        if node_id is None or not self.is_whole() or len(self.cluster.nodes) == 1:
            return False
        node = self.cluster.nodes[node_id]
        try:
            batches = [
                (partition, segment.path(LOG), position, header)
                for partition in node.broker.partitions
                if partition.is_replicated and partition.log.failed is None
                for segment in partition.log.segments
                for position, header in segment.batches_from(segment.base_offset)
                if header.next_offset <= partition.committed_offset
            ]
        except OSError:
            # Another fault makes this node's files unreadable, to us as well.
            return False
        if not batches:
            return False
        partition, path, position, header = batches[int(luck * len(batches))]
        self.rot = Corruption(node_id, partition.topic_id, partition.name.partition, header.base_offset)
        self.cluster.note(f"node {node_id} rots: {partition.name.folder} at {header.base_offset}")
        node.disk.flip_bit(path, position + HEADER_BYTES + int(depth * (header.size - HEADER_BYTES)), bit)
        return True

    def _kill(self, fault: FaultPlan, random: Random) -> bool:
        return self._kill_node(self._any(random), fault)

    def _kill_of_a_leader(self, fault: FaultPlan, random: Random) -> bool:
        return self._kill_node(self._leader(random), fault)

    def _kill_of_the_controller(self, fault: FaultPlan, random: Random) -> bool:
        return self._kill_node(self._controller(random), fault)

    def _kill_node(self, node_id: int | None, fault: FaultPlan) -> bool:
        if node_id is None:
            return False
        self.cluster.kill(node_id, fault.lasts_ms if fault.dice % 2 else 0)
        return True

    def _long_absence(self, fault: FaultPlan, random: Random) -> bool:
        """A node is down for the whole time and comes back with its records; only one node at a time."""
        node_id = self._any(random)
        if node_id is None or len(dict(self.cluster.running())) < len(self.cluster.nodes):
            return False
        self.cluster.kill(node_id, fault.lasts_ms)
        return True

    def _all_killed(self, fault: FaultPlan, random: Random) -> bool:
        for node_id, node in self.cluster.nodes.items():
            if node.is_up:
                self.cluster.kill(node_id, random.choice((0, 0, fault.lasts_ms)))
        return True

    def _stop(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None or self.cluster.nodes[node_id].is_stopping:
            return False
        self.cluster.stop(node_id, fault.lasts_ms if fault.dice % 2 else 0)
        return True

    # Pauses

    def _pause(self, fault: FaultPlan, random: Random) -> bool:
        return self._pause_node(self._any(random), fault)

    def _pause_of_a_leader(self, fault: FaultPlan, random: Random) -> bool:
        return self._pause_node(self._leader(random), fault)

    def _pause_of_the_controller(self, fault: FaultPlan, random: Random) -> bool:
        return self._pause_node(self._controller(random), fault)

    def _pause_node(self, node_id: int | None, fault: FaultPlan) -> bool:
        if node_id is None:
            return False
        self.cluster.pause(node_id)
        self._later(fault, lambda: self.cluster.resume(node_id))
        return True

    def _suspension(self, fault: FaultPlan, random: Random) -> bool:
        return self._suspend_node(self._any(random), fault)

    def _suspension_of_a_leader(self, fault: FaultPlan, random: Random) -> bool:
        return self._suspend_node(self._leader(random), fault)

    def _suspension_of_the_controller(self, fault: FaultPlan, random: Random) -> bool:
        return self._suspend_node(self._controller(random), fault)

    def _suspend_node(self, node_id: int | None, fault: FaultPlan) -> bool:
        if node_id is None:
            return False
        self.cluster.suspend(node_id)
        self._later(fault, lambda: self.cluster.resume(node_id))
        return True

    # The network

    @property
    def _hosts(self) -> list[str]:
        return [node.name for node in self.cluster.nodes.values()]

    def _cut(self, fault: FaultPlan, ways: Iterable[Way]) -> None:
        cut = list(ways)
        for way in cut:
            self._sim.network.blackhole(*way)
        self._later(fault, lambda: self._mend(cut))

    def _reject(self, fault: FaultPlan, ways: Iterable[Way]) -> None:
        """Connections are refused, and existing ones break: at their next use, or all at once."""
        cut = list(ways)
        for way in cut:
            self._sim.network.reject(*way)
            if fault.dice % 2:
                self._sim.network.reset_between(*way)
        self._later(fault, lambda: self._mend(cut))

    def _mend(self, ways: Iterable[Way]) -> None:
        for way in ways:
            self._sim.network.mend(*way)

    def _around(self, node_id: int, *, with_clients: bool) -> list[Way]:
        name = self._name(node_id)
        others = [each for each in (*self._hosts, *(self._clients if with_clients else ())) if each != name]
        return [way for other in others for way in ((name, other), (other, name))]

    def _isolation(self, fault: FaultPlan, random: Random) -> bool:
        return self._isolate(self._any(random), fault, random)

    def _isolation_of_a_leader(self, fault: FaultPlan, random: Random) -> bool:
        return self._isolate(self._leader(random), fault, random)

    def _rejecting_isolation(self, fault: FaultPlan, random: Random) -> bool:
        return self._isolate(self._any(random), fault, random, rejects=True)

    def _rejecting_isolation_of_a_leader(self, fault: FaultPlan, random: Random) -> bool:
        return self._isolate(self._leader(random), fault, random, rejects=True)

    def _rejecting_isolation_of_the_controller(self, fault: FaultPlan, random: Random) -> bool:
        return self._isolate(self._controller(random), fault, random, rejects=True)

    def _isolate(self, node_id: int | None, fault: FaultPlan, random: Random, *, rejects: bool = False) -> bool:
        if node_id is None:
            return False
        with_clients = random.random() < 0.3
        self.cluster.note(f"node {node_id} is cut off" + (", from clients too" if with_clients else ""))
        ways = self._around(node_id, with_clients=with_clients)
        (self._reject if rejects else self._cut)(fault, ways)
        return True

    def _one_way_cut(self, fault: FaultPlan, random: Random) -> bool:
        """Drop packets from one node to some others, or from them to it."""
        one, *others = random.sample(self._hosts, len(self._hosts))
        if not others:
            return False
        others = others[: random.randint(1, len(others))]
        outwards = random.random() < 0.5
        self.cluster.note(
            f"nothing goes from {one} to {others}" if outwards else f"nothing goes from {others} to {one}"
        )
        self._cut(fault, [(one, other) if outwards else (other, one) for other in others])
        return True

    def _split(self, fault: FaultPlan, random: Random, *, rejects: bool = False) -> bool:
        side = random.sample(self._hosts, random.randint(0, len(self._hosts)))
        others = [each for each in self._hosts if each not in side]
        self.cluster.note(f"{side} and {others} are cut from each other")
        ways = [way for one in side for other in others for way in ((one, other), (other, one))]
        (self._reject if rejects else self._cut)(fault, ways)
        return True

    def _rejecting_split(self, fault: FaultPlan, random: Random) -> bool:
        """Two sides refuse each other's connections: any two, a minority with the controller, or in one direction."""
        luck = random.random()
        controller_id = self._controller(random)
        if luck < 0.4 and controller_id is not None:
            name = self._name(controller_id)
            others = random.sample([each for each in self._hosts if each != name], len(self._hosts) - 1)
            with_it = max((len(self._hosts) - 1) // 2 - 1, 0)
            side, rest = [name, *others[:with_it]], others[with_it:]
            self.cluster.note(f"{side} and {rest} refuse each other")
            self._reject(fault, [way for one in side for other in rest for way in ((one, other), (other, one))])
            return True
        if luck < 0.8 or len(self._hosts) < 2:
            return self._split(fault, random, rejects=True)
        one, other = random.sample(self._hosts, 2)
        self.cluster.note(f"{other} refuses what {one} sends")
        self._reject(fault, [(one, other)])
        return True

    def _flapping(self, fault: FaultPlan, random: Random) -> bool:
        """A node is isolated and healed again and again."""
        node_id = self._any(random)
        if node_id is None:
            return False
        ways = self._around(node_id, with_clients=False)
        until_ms = self._sim.clock.now_ms + fault.lasts_ms

        def flap(is_open: bool) -> None:
            if is_open or self._over or self._sim.clock.now_ms >= until_ms:
                self._mend(ways)
            else:
                for way in ways:
                    self._sim.network.blackhole(*way)
            if not self._over and self._sim.clock.now_ms < until_ms:
                self._sim.clock.call_later(random.randint(1, 2 * FLAP_MS), lambda: flap(not is_open))

        flap(False)
        return True

    def _slow_ways(self, fault: FaultPlan, random: Random) -> bool:
        return self._worsen(fault, random, latency_ms=(0, random.choice((30, 150, 700))), loss_share=0.0)

    def _lossy_ways(self, fault: FaultPlan, random: Random) -> bool:
        return self._worsen(fault, random, latency_ms=(0, 10), loss_share=random.choice((0.02, 0.1, 0.3)))

    def _worsen(self, fault: FaultPlan, random: Random, latency_ms: tuple[int, int], loss_share: float) -> bool:
        """Some paths between nodes, or to clients, become slow."""
        hosts = [*self._hosts, *self._clients]
        ways = [(one, other) for one in hosts for other in hosts if one != other and random.random() < 0.3]
        for way in ways:
            self._sim.network.set_path(*way, latency_ms=latency_ms, loss_share=loss_share)
        self._later(fault, lambda: self._mend(ways))
        return True

    def _resets(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None:
            return False
        for link in self._sim.network.links(self._name(node_id)):
            if random.random() < 0.7:
                self._sim.network.reset(link)
        return True

    # Disks and clocks

    def _slow_disk(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None:
            return False
        node, incarnation = self.cluster.nodes[node_id], self.cluster.nodes[node_id].incarnation
        node.workers_delay_ms = random.choice((100, 800, 3_000))

        def be_quick() -> None:
            if node.incarnation == incarnation:
                node.workers_delay_ms = None

        self._later(fault, be_quick)
        return True

    def _stuck_disk(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None:
            return False
        workers = self.cluster.nodes[node_id].workers
        workers.stuck_share, workers.stuck_ms = STUCK_SHARE, random.choice((300, 1_500, 4_000))

        def be_free() -> None:
            workers.stuck_share = 0.0

        self._later(fault, be_free)
        return True

    def _full_disk(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None:
            return False
        disk = self.cluster.nodes[node_id].disk
        disk.fill(random.randrange(FULL_DISK_ROOM_BYTES_MAX))
        self._later(fault, disk.make_room)
        return True

    def _failing_sync(self, fault: FaultPlan, random: Random) -> bool:
        """Data whose sync failed is lost, as after a power cut; the process restarts."""
        node_id, target, times = self._any(random), random.choice(SYNC_TARGETS), random.randint(1, 3)
        if node_id is None or not self._may_lose_power():
            return False
        node = self.cluster.nodes[node_id]
        disk, incarnation = node.disk, node.incarnation
        self._note_loss(node_id)
        disk.fail_syncs(target, times=times)
        self.cluster.note(f"node {node_id} cannot sync {target or 'anything'}")

        def be_whole() -> None:
            disk.sync_faults.clear()
            if node.is_up and node.incarnation == incarnation and not self._over:
                self.cluster.resume(node_id)
                self.cluster.kill(node_id)

        self._later(fault, be_whole)
        return True

    def _failing_reads(self, fault: FaultPlan, random: Random) -> bool:
        node_id, target, times = self._any(random), random.choice(READ_TARGETS), random.randint(1, 4)
        if node_id is None:
            return False
        disk = self.cluster.nodes[node_id].disk
        disk.fail_reads(target, times=times)
        self._later(fault, disk.read_faults.clear)
        return True

    def _no_more_open_files(self, fault: FaultPlan, random: Random) -> bool:
        node_id, more = self._any(random), random.randint(0, 2)
        if node_id is None:
            return False
        disk = self.cluster.nodes[node_id].disk
        disk.open_files_max = disk.open_files + more

        def allow_more() -> None:
            disk.open_files_max = None

        self._later(fault, allow_more)
        return True

    def _clock_rate(self, fault: FaultPlan, random: Random) -> bool:
        """The machine's clock runs fast or slow from its next start on."""
        node_id = self._any(random)
        if node_id is None:
            return False
        self.cluster.kill(node_id)
        self._sim.set_rate(self._name(node_id), random.choice(RATES))
        return True

    def _clock_jump(self, fault: FaultPlan, random: Random) -> bool:
        node_id = self._any(random)
        if node_id is None:
            return False
        self._sim.jump_wall(self._name(node_id), random.choice(JUMPS_MS))
        return True

    def _clock_years_off(self, fault: FaultPlan, random: Random) -> bool:
        """The machine's clock is off by years, now or from its next start on, or is set right again."""
        node_id, by_ms = self._any(random), random.choice((-YEARS_MS, YEARS_MS))
        if node_id is None:
            return False
        if random.random() < 0.5:
            self.cluster.kill(node_id)
        self._sim.jump_wall(self._name(node_id), by_ms)
        return True
