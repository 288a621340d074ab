"""Several hosts in one simulated world: a shared clock and network, and for each host its own disk and luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.base.ports import World
from millpond.sim.world.clock import SimTimer, VirtualClock
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.sim.world.network import SimNetwork
from millpond.sim.world.workers import SimWorkers


class HostClock:
    """The clock of one host between a start and a stop: it drifts by itself, and what it runs ends with the host."""

    def __init__(self, clock: VirtualClock) -> None:
        self.wall_offset_ms = 0
        self._clock = clock
        self._stopped = False

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._clock.call_soon(lambda: self._run(callback))

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> SimTimer:
        return self._clock.call_later(delay_ms, lambda: self._run(callback))

    def stop(self) -> None:
        self._stopped = True

    def _run(self, callback: Callable[[], None]) -> None:
        if not self._stopped:
            callback()


@dataclass(slots=True)
class SimHost:
    """One machine: its disk outlives its lives."""

    name: str
    disk: SimDisk
    lives: int = 0
    clock: HostClock | None = None


class SimWorld:
    """A clock, a network and hosts from one seed."""

    def __init__(self, seed: int = 0, *, shuffle: bool = True) -> None:
        self.seed = seed
        self.clock = VirtualClock(seed, shuffle=shuffle)
        self.network = SimNetwork(self.clock, f"network {seed}")
        self.hosts: dict[str, SimHost] = {}
        self.power_cuts: list[str] = []

    def start(self, name: str) -> World:
        """Switch a host on, for the first time or again; a broker on the returned ports lives until it stops."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = SimHost(name, SimDisk(f"disk {name} {self.seed}"))
        assert host.clock is None, f"{name} runs already"
        host.lives += 1
        host.clock = HostClock(self.clock)
        self.network.start_host(name)
        luck = f"{name} {host.lives} {self.seed}"
        return World(
            clock=host.clock,
            disk=host.disk,
            network=self.network.at(name),
            workers=SimWorkers(host.clock, f"workers {luck}"),
            entropy=SeededEntropy(f"entropy {luck}"),
        )

    def crash(self, name: str) -> None:
        """Cut the power: unsynced data is lost in part, peers hear nothing."""
        self._stop(name, silently=True)
        self.hosts[name].disk.crash()

    def kill(self, name: str) -> None:
        """Kill the process only: the disk keeps all that was written, peers see their connections break."""
        self._stop(name, silently=False)
        self.hosts[name].disk.drop_process()

    def restart(self, name: str) -> World:
        """Crash and start again at once."""
        self.crash(name)
        return self.start(name)

    def _stop(self, name: str, *, silently: bool) -> None:
        host = self.hosts[name]
        if host.clock is not None:
            host.clock.stop()
            host.clock = None
        self.network.stop_host(name, silently=silently)

    def run_until(self, condition: Callable[[], bool] | None = None, *, within_ms: int = 60_000) -> bool:
        """As the clock's; a `PowerCut` on a host's disk crashes that host (see `power_cuts`), the others go on."""
        deadline = self.clock.now_ms + within_ms
        while True:
            try:
                return self.clock.run_until(condition, within_ms=max(deadline - self.clock.now_ms, 0))
            except PowerCut as cut:
                name = next(host.name for host in self.hosts.values() if host.disk is cut.disk)
                self.power_cuts.append(name)
                self.crash(name)

    def run_for(self, duration_ms: int) -> None:
        self.run_until(within_ms=duration_ms)
