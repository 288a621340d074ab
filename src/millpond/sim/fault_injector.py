"""The faults of one node, one small function per kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from millpond.sim.history.records import History
from millpond.sim.node import SimNode
from millpond.sim.records.plan import FaultPlan
from millpond.sim.world.world import SimWorld

RESTART_MS_MAX = 1_500
FULL_DISK_ROOM_BYTES_MAX = 20_000
SYNC_TARGETS = ("", "", "topic", "__cluster_metadata", "checkpoint", ".log", ".index")
STUCK_SHARE = 0.3
READ_TARGETS = ("", "topic", ".log", ".index")
BEHIND_MS = (1_800_000, 8 * 86_400_000, 8 * 86_400_000)
"""How far the clock is behind: by less than record timestamps may be ahead, or by more than offsets are retained."""
JUMPS_MS = (-7_200_000, -60_000, -1_000, 1_000, 60_000, 86_400_000)


class FaultInjector:
    """Injects the planned faults into a node, and restarts it after each."""

    def __init__(self, sim: SimWorld, node: SimNode, history: History, random: Random) -> None:
        self.sim = sim
        self.node = node
        self.history = history
        self.counts: dict[str, int] = {}
        self.clock_leapt = False
        self.starts_refused = 0
        self._random = random
        self._start_at_ms = 0
        self._behind_ms = 0
        self._power_cuts = 0
        self._over = False

    def schedule(self, faults: list[FaultPlan]) -> None:
        for fault in faults:
            self.sim.clock.call_later(fault.at_ms, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def watch(self) -> None:
        """Restart the node when it is down, as a supervisor would."""
        if self._over:
            return
        now_ms = self.sim.clock.now_ms
        self._hear_of_power_cuts()
        if not self.node.is_up and now_ms >= self._start_at_ms and not self.node.start():
            self.starts_refused += 1
            self._rest()
        if self.node.is_up and self._behind_ms:
            self._set_clock_right()
        self.sim.clock.call_later(20, self.watch)

    def end(self) -> None:
        """Stop injecting faults, and heal the world."""
        self._hear_of_power_cuts()
        self._over = True
        self.node.disk.heal()
        self.node.disk.crash_at_operation(1 << 62)
        self._set_clock_right()
        if self.node.is_up:
            self.sim.resume(self.node.name)
        self.sim.network.heal()
        self.sim.network.latency_range_ms = (0, 3)

    def _hear_of_power_cuts(self) -> None:
        """Watch for power cuts, which the disk raises at one of its operations."""
        if len(self.sim.power_cuts) > self._power_cuts:
            self._power_cuts = len(self.sim.power_cuts)
            self._count("power cut at operation")
            self._after_power_cut()

    def cut_power(self) -> None:
        self.node.crash()
        self._after_power_cut()

    def _after_power_cut(self) -> None:
        self.history.last_power_cut_ms = self.sim.clock.now_ms
        self.history.note(self.sim.clock.now_ms, "power cut")
        self._rest()

    def _rest(self) -> None:
        self._start_at_ms = self.sim.clock.now_ms + self._random.randint(0, RESTART_MS_MAX)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # The faults

    def _strike(self, fault: FaultPlan) -> None:
        if self._over:
            return
        self.history.note(self.sim.clock.now_ms, f"fault: {fault}")
        strike: Callable[[FaultPlan], None] = {
            "power cut": self._power_cut,
            "power cut at operation": self._power_cut_at_operation,
            "kill": self._kill,
            "stop": self._stop,
            "failing sync": self._failing_sync,
            "failing sync, then kill": self._failing_sync_then_kill,
            "full disk": self._full_disk,
            "failing reads": self._failing_reads,
            "no more open files": self._no_more_open_files,
            "resets": self._resets,
            "lost packets": self._lost_packets,
            "slow network": self._slow_network,
            "slow disk": self._slow_disk,
            "stuck disk": self._stuck_disk,
            "cold disk": self._cold_disk,
            "clock jump": self._clock_jump,
            "clock behind": self._clock_behind,
            "suspension": self._suspension,
            "pause": self._pause,
            "offline partition": self._offline_partition,
        }[fault.kind]
        if fault.kind != "power cut at operation":
            self._count(fault.kind)
        strike(fault)

    def _later(self, fault: FaultPlan, undo: Callable[[], None]) -> None:
        self.sim.clock.call_later(fault.lasts_ms, undo)

    def _power_cut(self, fault: FaultPlan) -> None:
        if self.node.is_up and not self._over:
            self.cut_power()

    def _power_cut_at_operation(self, fault: FaultPlan) -> None:
        disk = self.node.disk
        disk.crash_at_operation(disk.operations + 1 + int(fault.luck**2 * 200))

    def _kill(self, fault: FaultPlan) -> None:
        if self.node.is_up and not self._over:
            self.node.kill()
            self._rest()

    def _stop(self, fault: FaultPlan) -> None:
        if self.node.is_up:
            self.node.stop()

    def _failing_sync(self, fault: FaultPlan) -> None:
        """A failed sync takes its partition offline until the node restarts."""
        self._fail_syncs(fault)
        self.sim.clock.call_later(fault.lasts_ms + 100, lambda: self._power_cut(fault))

    def _failing_sync_then_kill(self, fault: FaultPlan) -> None:
        self._fail_syncs(fault)
        self.sim.clock.call_later(fault.lasts_ms + 100, lambda: self._kill(fault))

    def _fail_syncs(self, fault: FaultPlan) -> None:
        self.node.disk.fail_syncs(self._random.choice(SYNC_TARGETS), times=1 + int(fault.luck * 2))
        self._later(fault, self.node.disk.sync_faults.clear)

    def _full_disk(self, fault: FaultPlan) -> None:
        self.node.disk.fill(int(fault.luck * FULL_DISK_ROOM_BYTES_MAX))
        self._later(fault, self.node.disk.make_room)

    def _failing_reads(self, fault: FaultPlan) -> None:
        self.node.disk.fail_reads(self._random.choice(READ_TARGETS), times=1 + int(fault.luck * 3))
        self._later(fault, self.node.disk.read_faults.clear)

    def _no_more_open_files(self, fault: FaultPlan) -> None:
        disk = self.node.disk
        disk.open_files_max = disk.open_files + int(fault.luck * 3)

        def allow_more() -> None:
            disk.open_files_max = None

        self._later(fault, allow_more)

    def _resets(self, fault: FaultPlan) -> None:
        for link in self.sim.network.links(self.node.name):
            if self._random.random() < 0.7:
                self.sim.network.reset(link)

    def _lost_packets(self, fault: FaultPlan) -> None:
        """Packets in one direction, or both, are lost and arrive late."""
        peers = sorted({link.peer_host for link in self.sim.network.links(self.node.name)})
        for peer in peers:
            if self._random.random() < 0.5:
                self.sim.network.blackhole(peer, self.node.name)
            if self._random.random() < 0.5:
                self.sim.network.blackhole(self.node.name, peer)
        self._later(fault, self.sim.network.heal)

    def _slow_network(self, fault: FaultPlan) -> None:
        self.sim.network.latency_range_ms = (0, 30 + int(fault.luck * 400))

        def be_quick() -> None:
            self.sim.network.latency_range_ms = (0, 3)

        self._later(fault, be_quick)

    def _slow_disk(self, fault: FaultPlan) -> None:
        self.node.workers_delay_ms = 50 + int(fault.luck * 4_000)

        def be_quick() -> None:
            self.node.workers_delay_ms = None

        self._later(fault, be_quick)

    def _stuck_disk(self, fault: FaultPlan) -> None:
        """A few worker tasks take very long and finish after later ones."""
        workers = self.node.workers
        workers.stuck_share = STUCK_SHARE
        workers.stuck_ms = 200 + int(fault.luck * 4_000)

        def be_free() -> None:
            workers.stuck_share = 0.0

        self._later(fault, be_free)

    def _cold_disk(self, fault: FaultPlan) -> None:
        self.node.disk.cold_share = fault.luck

        def be_warm() -> None:
            self.node.disk.cold_share = 0.0

        self._later(fault, be_warm)

    def _clock_jump(self, fault: FaultPlan) -> None:
        jump_ms = JUMPS_MS[int(fault.luck * len(JUMPS_MS))]
        self.clock_leapt |= jump_ms > 0
        self.sim.clock.jump_wall(jump_ms)

    def _clock_behind(self, fault: FaultPlan) -> None:
        """The node boots with a wall clock far behind, as with an empty battery; a time server sets it right before
        clients work, and the next start must not suffer from it."""
        if self._behind_ms or not self.node.is_up:
            return
        self.clock_leapt = True
        self._behind_ms = BEHIND_MS[int(fault.luck * len(BEHIND_MS))]
        self.sim.jump_wall(self.node.name, -self._behind_ms)
        self._kill(fault)
        self.sim.clock.call_later(RESTART_MS_MAX + fault.lasts_ms, lambda: self._kill(fault))

    def _set_clock_right(self) -> None:
        self.sim.jump_wall(self.node.name, self._behind_ms)
        self._behind_ms = 0

    def _suspension(self, fault: FaultPlan) -> None:
        """The machine sleeps: its wall clock advances, its monotonic clock does not."""
        if self.node.is_up:
            self.clock_leapt = True
            self.sim.suspend(self.node.name, fault.lasts_ms)

    def _pause(self, fault: FaultPlan) -> None:
        """The process is paused and resumed; it does not notice the time."""
        if self.node.is_up:
            self.sim.pause(self.node.name)
            incarnation = self.node.incarnation
            self._later(
                fault, lambda: self.sim.resume(self.node.name) if self.node.incarnation == incarnation else None
            )

    def _offline_partition(self, fault: FaultPlan) -> None:
        """One partition cannot be opened at a start, and can at the next."""
        if not self.node.is_up:
            return
        disk = self.node.disk
        folders = sorted(each.name.folder for each in self.node.broker.partitions)
        if not folders:
            return
        disk.fail_opens(f"/{self._random.choice(folders)}/")
        self._kill(fault)

        def mend() -> None:
            disk.open_faults.clear()
            self._kill(fault)

        self.sim.clock.call_later(RESTART_MS_MAX + fault.lasts_ms, mend)
