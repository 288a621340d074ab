"""Arenas: a network, a disk and a way to let time pass, the same for the real world and the simulated one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import uvloop

from millpond.base.ports import Disk, Link, LinkHandler, Network
from millpond.base.tls import ClientTls, ServerTls, TlsFiles
from millpond.node.disk import RealDisk
from millpond.node.link import SocketLink
from millpond.node.network import SocketListener, SocketNetwork
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.network import SimNetwork
from support.tls import Certificates


class Environment(Protocol):
    network: Network
    disk: Disk
    folder: str
    faults: list[BaseException]

    def connect(self, port: int, make_handler: Callable[[Link], LinkHandler]) -> Link: ...

    def run_until(self, condition: Callable[[], bool], seconds: float = 60) -> bool: ...


class TlsNetwork(SocketNetwork):
    """Encrypts every connection."""

    def __init__(self, certificates: Certificates, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        server, authority = str(certificates.server), str(certificates.authority)
        self.server_tls = ServerTls(TlsFiles(server, server))
        self.client_tls = ClientTls(TlsFiles(authorities=authority))

    def listen(self, host: str, port: int, accept: Any, *_: Any) -> SocketListener:
        return super().listen(host, port, accept, self.server_tls)

    def connect(self, host: str, port: int, make_handler: Any, *_: Any) -> Any:
        return super().connect(host, port, make_handler, self.client_tls)


class RealEnvironment:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, sendfile: bool, folder: str, certificates: Certificates | None = None
    ) -> None:
        self.loop = loop
        self.folder = folder
        self.disk = RealDisk()
        self.faults: list[BaseException] = []
        self.network = (
            SocketNetwork(loop, on_fault=self._note, sendfile=sendfile)
            if certificates is None
            else TlsNetwork(certificates, loop, on_fault=self._note)
        )
        self.links: list[SocketLink] = []
        loop.set_exception_handler(lambda _, context: self.faults.append(context["exception"]))

    def _note(self, link: SocketLink | None, error: BaseException) -> None:
        self.faults.append(error)

    def connect(self, port: int, make_handler: Callable[[Link], LinkHandler]) -> Link:
        link = self.network.connect("127.0.0.1", port, make_handler)
        self.links.append(link)
        return link

    def run_until(self, condition: Callable[[], bool], seconds: float = 60) -> bool:
        async def wait() -> bool:
            deadline = time.monotonic() + seconds
            while not condition():
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(0.0005)
            return True

        return self.loop.run_until_complete(wait())


class SimulatedEnvironment:
    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock(seed, shuffle=True)
        self._world = SimNetwork(self.clock, seed)
        self.network = self._world.at("127.0.0.1")
        self.disk = SimDisk(seed)
        self.folder = "/"

    @property
    def faults(self) -> list[BaseException]:
        return [error for _, error in self._world.faults]

    def connect(self, port: int, make_handler: Callable[[Link], LinkHandler]) -> Link:
        return self._world.connect("127.0.0.1", port, make_handler)

    def run_until(self, condition: Callable[[], bool], seconds: float = 60) -> bool:
        return self.clock.run_until(condition, within_ms=int(seconds * 1000))


REAL = [f"{loop}{variant}" for variant in ("", "-copying", "-tls") for loop in ("uvloop", "asyncio")]


@pytest.fixture(params=[*REAL, "sim-1", "sim-2"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    kind, _, variant = request.param.partition("-")
    if kind == "sim":
        yield SimulatedEnvironment(int(variant))
        return
    loop = uvloop.new_event_loop() if kind == "uvloop" else asyncio.SelectorEventLoop()
    certificates = Certificates(tmp_path / "certificates") if variant == "tls" else None
    real = RealEnvironment(loop, variant != "copying", str(tmp_path), certificates)
    yield real
    for link in real.links:
        link.abort()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
