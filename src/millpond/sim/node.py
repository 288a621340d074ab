"""A whole broker on a simulated host, which can be started, stopped, killed and lose power."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.base.errors import Refused
from millpond.broker.broker import Broker
from millpond.broker.data_folder.identity import CannotStart
from millpond.config.node import node_settings
from millpond.metadata.features import SUPPORTED, Supported
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.sim.world.host_clock import HostClock
from millpond.sim.world.workers import SimWorkers
from millpond.sim.world.world import SimWorld

PORT = 9092
DATA_FOLDER = "/var/pond"
JOURNAL_LINES_MAX = 10_000
RESERVE_BYTES = "2048"
"""Small, because every file of a simulated disk is held in memory."""


class SimNode:
    """One host and the broker that runs on it; the disk survives every restart."""

    def __init__(self, sim: SimWorld, name: str = "node", texts: Mapping[str, str] | None = None) -> None:
        self.sim = sim
        self.name = name
        self.port = PORT
        self.texts = {"data.folder": DATA_FOLDER, "listen": f"{name}:{PORT}", **(texts or {})}
        self.supported: Supported = SUPPORTED
        """The feature levels that its program supports; a change applies from the next start on."""
        self.incarnation = 0
        self.journal_lines: list[str] = []
        self.workers_delay_ms_usual = 5
        self._workers: SimWorkers | None = None
        self._broker: Broker | None = None
        self._stopping: Broker | None = None
        self._clock: HostClock | None = None

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        assert self.is_up, f"{self.name} is down"
        return self._broker

    @property
    def is_up(self) -> bool:
        """Whether the broker still runs; a power cut in the middle of an event ends it, too."""
        host = self.sim.hosts.get(self.name)
        return self._broker is not None and host is not None and host.clock is self._clock

    @property
    def is_stopping(self) -> bool:
        return self.is_up and self._stopping is self._broker

    @property
    def disk(self) -> SimDisk:
        return self.sim.hosts[self.name].disk

    @property
    def workers(self) -> SimWorkers:
        """The workers of the current incarnation."""
        assert self._workers is not None
        return self._workers

    @property
    def workers_delay_ms(self) -> int | None:
        """How long a disk operation of a worker may take; None for the usual time."""
        return None if self._workers is None else self._workers.delay_ms_max

    @workers_delay_ms.setter
    def workers_delay_ms(self, delay_ms: int | None) -> None:
        if self._workers is not None:
            self._workers.delay_ms_max = self.workers_delay_ms_usual if delay_ms is None else delay_ms

    # Starting and stopping

    def start(self) -> bool:
        """Boot; False if the process could not start (a full or failing disk) or lost power again."""
        assert not self.is_up, f"{self.name} runs already"
        world = self.sim.start(self.name)
        self._clock = self.sim.hosts[self.name].clock
        self.incarnation += 1
        assert isinstance(world.workers, SimWorkers)
        self._workers = world.workers
        self.workers_delay_ms = None
        texts = {"disk.reserve.bytes": RESERVE_BYTES, **self.texts}
        broker = Broker(world, node_settings(texts), self._journal, self.supported)
        try:
            broker.start()
        except PowerCut as cut:
            self.sim.power_cuts.append(self.name)
            self._journal(f"power cut while starting: {cut}")
            self.crash()
            return False
        except (OSError, Refused, CannotStart) as error:
            self._journal(f"cannot start: {error}")
            self._end_start(broker)
            return False
        self._broker = broker
        # In the real node `ready` has a single reader, so it has one here as well.
        broker.ready.then(lambda _: None)
        broker.controller.offline.then(lambda error: self._end_offline(broker, error))
        broker.controller.outdated.then(lambda why: self._end_soon(broker, f"this node is outdated: {why}"))
        return True

    def _end_start(self, broker: Broker) -> None:
        """Close what was opened, as the real node does when it cannot start."""
        try:
            broker.close()
        except PowerCut:
            self.sim.power_cuts.append(self.name)
            self.crash()
            return
        except OSError as error:
            self._journal(f"could not end cleanly: {error}")
        self.kill()

    def _end_offline(self, broker: Broker, error: OSError) -> None:
        # A node that was alone when it started may have peers by now.
        if not broker.controller.is_alone:
            self._end_soon(broker, f"the metadata log is offline: {error}")

    def _end_soon(self, broker: Broker, why: str) -> None:
        """End the process, as the real node does; its supervisor restarts it."""

        def end() -> None:
            if self._broker is broker and self.is_up:
                self._journal(why)
                self.kill()

        self.sim.clock.call_soon(end)

    def crash(self) -> None:
        """Cut the power: unsynced data survives in part, and clients' connections just go silent."""
        self.sim.crash(self.name)
        self._broker = None

    def kill(self) -> None:
        """Kill the process: the disk keeps everything written, and clients' connections break."""
        self.sim.kill(self.name)
        self._broker = None

    def stop(self) -> None:
        """Stop cleanly: answer pending requests, close the logs, exit. Takes a moment of virtual time."""
        broker = self.broker
        self._stopping = broker
        broker.drain(lambda: self._close(broker))

    def _close(self, broker: Broker) -> None:
        if self._broker is not broker or not self.is_up:
            return
        try:
            broker.close()
        except OSError as error:
            self._journal(f"could not end cleanly: {error}")
        self.kill()

    def restart(self) -> bool:
        """Cut the power and start again at once."""
        self.crash()
        return self.start()

    def _journal(self, event: str, **facts: object) -> None:
        if len(self.journal_lines) < JOURNAL_LINES_MAX:
            told = "".join(f" {name}={fact}" for name, fact in facts.items())
            self.journal_lines.append(f"{self.sim.clock.now_ms} {self.name}/{self.incarnation} {event}{told}")
