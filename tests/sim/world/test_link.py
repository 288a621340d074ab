"""Ranges on a simulated link when the disk or the machine fails. (What every link promises: tests/ports.)"""

from __future__ import annotations

import errno

import pytest

from millpond.base.ports import FileRange
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.network import SimNetwork


class Scene:
    def __init__(self, make_peer) -> None:
        self.clock = VirtualClock(1)
        self.network = SimNetwork(self.clock, 1)
        self.disk = SimDisk(1)
        self.file = self.disk.open("/a", create=True)
        self.file.append([bytes(1 << 20)])
        self.served: list = []
        self.network.listen("b", 1, lambda link: self.served.append(make_peer(link)) or self.served[-1])
        self.clients: list = []
        self.network.connect("b", 1, lambda link: self.clients.append(make_peer(link)) or self.clients[-1])
        self.clock.run_for(10)

    def send_range(self) -> None:
        self.file.retain()
        self.served[0].link.send([FileRange(self.file, 0, 1 << 20)])

    def is_released(self) -> bool:
        """A closed file with a hold left would still be open."""
        self.file.close()
        return self.disk.open_files == 0


@pytest.fixture
def scene(make_peer) -> Scene:
    return Scene(make_peer)


def test_a_range_that_cannot_be_read_breaks_the_link(scene: Scene) -> None:
    scene.disk.fail_reads("/a")
    scene.send_range()
    scene.clock.run_for(100)
    assert [error.errno for _, error in scene.network.faults] == [errno.EIO]
    assert (scene.served[0].closed_count, scene.clients[0].closed_count) == (1, 1)
    assert scene.is_released()


def test_a_vanished_machine_releases_its_ranges_without_closing_links(scene: Scene) -> None:
    scene.clients[0].link.pause_reading()
    scene.send_range()
    scene.network.stop_host("b", silently=True)
    scene.clock.run_for(100)
    assert (scene.served[0].closed_count, scene.clients[0].closed_count) == (0, 0)
    assert scene.clients[0].data == b""
    assert scene.is_released()


def test_a_window_that_is_full_stops_the_reading_of_the_file(scene: Scene) -> None:
    scene.clients[0].link.pause_reading()
    scene.send_range()
    scene.clock.run_for(1000)
    left = scene.served[0].link.unsent_bytes()
    assert 0 < left < 1 << 20
    assert not scene.is_released()
    scene.clients[0].link.resume_reading()
    scene.clock.run_for(1000)
    assert len(scene.clients[0].data) == 1 << 20
    assert scene.disk.open_files == 0
