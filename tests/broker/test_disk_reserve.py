"""The file that reserves disk space for operations that free space: released at once, rebuilt in steps."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.broker.storage.disk_reserve import RESERVE_FILE, TURN_BYTES, DiskReserve
from millpond.log.room import DiskRoom
from millpond.sim.world.disk import SimDisk

FOLDER = "/data"
PATH = f"{FOLDER}/{RESERVE_FILE}"
SIZE = 3 * TURN_BYTES + 1
DISK_BYTES = 100 * SIZE


class Reserve:
    """A reserve that was released, on a disk that has space again."""

    def __init__(self) -> None:
        self.disk = SimDisk(capacity_bytes=DISK_BYTES)
        self.disk.make_folder(FOLDER)
        self.room = DiskRoom()
        self.reserve = DiskReserve(
            self.disk, FOLDER, room=self.room, size_bytes=SIZE, journal=self._write, on_short=lambda: None
        )
        self.reserve.prepare()
        assert self.disk.size(PATH) == SIZE
        self.room.refusal(FOLDER, OSError(28, "No space left on device"))
        assert self.room.is_short
        assert not self.disk.size(PATH)

    def _write(self, event: str, **facts: Any) -> None: ...


@pytest.fixture
def given_up() -> Reserve:
    return Reserve()


def test_a_large_reserve_is_made_again_in_several_turns_of_the_loop(given_up: Reserve) -> None:
    """Writing it in one turn held up every client of the node."""
    sizes = []
    while given_up.room.is_short:
        given_up.reserve.look()
        sizes.append(given_up.disk.size(PATH))
        assert len(sizes) < 10
    assert sizes == [TURN_BYTES, 2 * TURN_BYTES, 3 * TURN_BYTES, SIZE]


def test_writes_wait_until_the_reserve_is_whole(given_up: Reserve) -> None:
    given_up.reserve.look()
    assert given_up.room.is_short
    given_up.disk.fill()
    given_up.reserve.look()
    assert given_up.room.is_short, "another process has taken the space meanwhile"
