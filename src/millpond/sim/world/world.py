"""Several hosts in one simulated world: a shared clock and network, and each host's own disk and entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millpond.base.ports import World
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.sim.world.host_clock import HostClock, Oscillator
from millpond.sim.world.network import SimNetwork
from millpond.sim.world.workers import SimWorkers


@dataclass(slots=True)
class SimHost:
    """One machine: its disk and its oscillator survive restarts."""

    name: str
    disk: SimDisk
    oscillator: Oscillator = field(default_factory=Oscillator)
    incarnation: int = 0
    boots: int = 1
    """The number of boots."""
    clock: HostClock | None = None
    asleep_since_ms: int | None = None
    """When the machine was suspended, by the world's clock; None if it is not."""


class SimWorld:
    """A clock, a network and hosts from one seed."""

    def __init__(self, seed: int = 0, *, shuffle: bool = True) -> None:
        self.seed = seed
        self.clock = VirtualClock(seed, shuffle=shuffle)
        self.network = SimNetwork(self.clock, f"network {seed}")
        self.hosts: dict[str, SimHost] = {}
        self.power_cuts: list[str] = []

    def host(self, name: str) -> SimHost:
        """The machine with this name, created switched off if unknown."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(name, SimDisk(f"disk {name} {self.seed}"))
        return self.hosts[name]

    def start(self, name: str) -> World:
        """Boot a host; a broker on the returned ports runs until the host stops."""
        host = self.host(name)
        assert host.clock is None, f"{name} runs already"
        host.incarnation += 1
        host.clock = HostClock(self.clock, host.oscillator)
        self.network.start_host(name)
        luck = f"{name} {host.incarnation} {self.seed}"
        workers = SimWorkers(host.clock, f"workers {luck}")
        return World(
            clock=host.clock,
            disk=host.disk,
            network=self.network.at(name),
            workers=workers,
            # Jobs overtake each other anyway, so no separate queue is needed.
            sync_workers=workers,
            login_workers=workers,
            entropy=SeededEntropy(f"entropy {luck}"),
            boot_id=f"{name}-{host.boots}",
        )

    def crash(self, name: str) -> None:
        """Cut the power: part of the unsynced data is lost, and peers notice nothing."""
        self._stop(name, silently=True)
        self.hosts[name].disk.crash()
        self.hosts[name].boots += 1

    def kill(self, name: str) -> None:
        """Kill only the process: the disk keeps everything written, and peers see their connections break."""
        self._stop(name, silently=False)
        self.hosts[name].disk.drop_process()

    def restart(self, name: str) -> World:
        """Crash and start again at once."""
        self.crash(name)
        return self.start(name)

    # Clocks and pauses

    def jump_wall(self, name: str, by_ms: int) -> None:
        """Move one host's wall clock forward or back, also for later boots; monotonic time is not affected."""
        self.host(name).oscillator.wall_offset_ms += by_ms

    def set_rate(self, name: str, rate: float) -> None:
        """Make a host's clock run faster or slower than the world's; only while it is switched off."""
        host = self.host(name)
        assert host.clock is None, f"{name} runs: its clock would jump"
        host.oscillator.rate = rate

    def pause(self, name: str) -> None:
        """Pause the process like SIGSTOP: time passes, bytes from peers accumulate, nothing runs until `resume`."""
        clock = self.hosts[name].clock
        assert clock is not None, f"{name} does not run"
        clock.pause()
        self.network.pause_host(name)

    def resume(self, name: str) -> None:
        """Resume after `pause` or `fall_asleep`.

        The seed decides whether late timers run before or after what peers have sent.
        """
        host = self.hosts[name]
        clock = host.clock
        if clock is None:
            return
        if host.asleep_since_ms is not None:
            host.oscillator.slept_ms += self.clock.now_ms - host.asleep_since_ms
            host.asleep_since_ms = None
        timers_first = self.network.random.random() < 0.5
        if timers_first:
            clock.resume()
        self.network.resume_host(name)
        if not timers_first:
            clock.resume()

    def fall_asleep(self, name: str) -> None:
        """Suspend the whole machine, like closing a laptop: the wall clock and the boot-time clock advance, the
        monotonic clock does not. `resume` wakes it.
        """
        self.pause(name)
        self.hosts[name].asleep_since_ms = self.clock.now_ms

    def suspend(self, name: str, for_ms: int) -> None:
        """`fall_asleep`, and resume after this time."""
        self.fall_asleep(name)
        incarnation = self.hosts[name].incarnation

        def wake() -> None:
            if self.hosts[name].incarnation == incarnation:
                self.resume(name)

        self.clock.call_later(for_ms, wake)

    # Disks

    def wipe(self, name: str) -> None:
        """Give a host that is switched off an empty disk."""
        host = self.hosts[name]
        assert host.clock is None, f"{name} runs: stop it first"
        host.disk.wipe()

    def roll_back(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Give a host that is switched off an old copy of its disk's contents."""
        host = self.hosts[name]
        assert host.clock is None, f"{name} runs: stop it first"
        host.disk.roll_back(contents)

    def _stop(self, name: str, *, silently: bool) -> None:
        host = self.hosts[name]
        if host.clock is not None:
            host.clock.stop()
            host.clock = None
        host.asleep_since_ms = None
        self.network.stop_host(name, silently=silently)

    def run_until(self, condition: Callable[[], bool] | None = None, *, within_ms: int = 60_000) -> bool:
        """Like the clock's `run_until`; a `PowerCut` on a host's disk crashes only that host (see `power_cuts`)."""
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
