"""What only a socket link does: sendfile and its substitutes, fairness, limits, faults. (The rest: tests/ports.)"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.base.ports import FileRange
from millpond.node import link as link_module
from millpond.node.disk import RealDisk
from millpond.node.link import SEND_BYTES_PER_TURN, SEND_BYTES_PER_WAKE, SendTurns, SocketLink

MIB = 1 << 20


class Harness:
    """A link with one end of a socket pair; the test holds the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: SendTurns | None = None) -> None:
        self.loop = loop
        self.heard: list[str] = []
        self.faults: list[BaseException] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
        listener.close()
        near.setblocking(False)
        self.far.setblocking(False)
        self.link = SocketLink(loop, near, "peer", True, lambda _, error: self.faults.append(error), turns)
        self.link.start(self)

    def buffer(self) -> memoryview:
        return memoryview(bytearray(1000))

    def received(self, count: int) -> None:
        self.heard.append(f"received {count}")

    def drained(self) -> None:
        self.heard.append("drained")

    def closed(self) -> None:
        self.heard.append("closed")

    def run_until(self, condition: Callable[[], object], seconds: float = 60) -> bool:
        async def wait() -> bool:
            deadline = time.monotonic() + seconds
            while not condition():
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(0.0005)
            return True

        return self.loop.run_until_complete(wait())

    def drain(self) -> bytes:
        """Read at the far end until nothing more comes for a moment."""
        data = bytearray()
        quiet = 0
        while quiet < 20:
            self.run_until(lambda: False, seconds=0.001)
            try:
                piece = self.far.recv(MIB)
            except BlockingIOError:
                quiet += 1
                continue
            if not piece:
                break
            quiet = 0
            data += piece
        return bytes(data)


@pytest.fixture
def harness(loop: asyncio.AbstractEventLoop) -> Iterator[Harness]:
    harness = Harness(loop)
    yield harness
    harness.link.abort()
    harness.far.close()
    loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def big(tmp_path: Path):
    file = RealDisk().open(f"{tmp_path}/big", create=True)
    file.append([os.urandom(6 * MIB)])
    yield file
    file.close()


def whole(file) -> FileRange:
    file.retain()
    return FileRange(file, 0, file.size())


def test_sendfile_is_used_in_turns(harness: Harness, big, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda *args: (asked.append(args[3]), sendfile(*args))[1])
    harness.link.send([b"head", whole(big)])
    assert sum(asked) < 6 * MIB, "one call of send must not do it all"
    assert harness.drain() == b"head" + big.read_at(0, 6 * MIB)
    assert max(asked) <= SEND_BYTES_PER_WAKE
    assert harness.heard == ["drained"]


def test_a_kernel_that_takes_everything_does_not_starve_the_others(
    harness: Harness, big, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "sendfile", lambda *args: asked.append(args[3]) or args[3])
    harness.link.send([whole(big)])
    assert asked == [SEND_BYTES_PER_WAKE]
    assert harness.link.unsent_bytes() == 6 * MIB - SEND_BYTES_PER_WAKE
    assert harness.run_until(lambda: harness.heard == ["drained"])
    assert (sum(asked), max(asked)) == (6 * MIB, SEND_BYTES_PER_WAKE)


def test_many_who_ask_for_much_at_once_share_a_turn_of_the_loop(
    loop: asyncio.AbstractEventLoop, big, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty who take what one may would have all others wait for twenty times that."""
    asked: list[int] = []
    monkeypatch.setattr(os, "sendfile", lambda *args: asked.append(args[3]) or args[3])
    turns = SendTurns(loop)
    scenes = [Harness(loop, turns) for _ in range(20)]
    for harness in scenes:
        harness.link.send([whole(big)])
        # However long it takes: a turn is no length of time.
        time.sleep(0.001)
    assert sum(asked) == SEND_BYTES_PER_TURN
    for harness in scenes:
        harness.link.send([b"little"])
    assert sum(asked) == SEND_BYTES_PER_TURN, "they have to wait for their turn"
    quick = Harness(loop, turns)
    quick.link.send([b"head", b"little"])
    assert quick.link.unsent_bytes() == 0, "who has little to send does not wait"
    assert scenes[0].run_until(lambda: all(harness.heard == ["drained"] for harness in scenes))
    assert sum(asked) == 20 * 6 * MIB
    scenes.append(quick)
    del asked[:]
    loop.run_until_complete(asyncio.sleep(0.003))
    scenes[0].link.send([whole(big)])
    assert asked == [SEND_BYTES_PER_WAKE], "who is alone has as much as ever"
    for harness in scenes:
        harness.link.abort()
        harness.far.close()
    loop.run_until_complete(asyncio.sleep(0))


def test_where_a_crowd_does_not_read_little_is_left_with_the_kernel(
    loop: asyncio.AbstractEventLoop, big, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take megabytes for each of them, of memory that all connections share."""
    monkeypatch.setattr(link_module, "CROWD", 4)
    turns = SendTurns(loop)
    scenes = [Harness(loop, turns) for _ in range(6)]
    for harness in scenes:
        harness.link.send([whole(big)])
        harness.run_until(lambda: False, seconds=0.02)
    assert turns.waiting == 6
    left = [harness.link.unsent_bytes() for harness in scenes]
    assert min(left[3:]) > 5 * MIB > max(left[:3]), left
    # A peer that reads after all is sent everything, as fast as others.
    assert scenes[5].drain() == big.read_at(0, 6 * MIB)
    assert scenes[5].heard == ["drained"]
    assert turns.waiting == 5
    for harness in scenes:
        harness.link.abort()
        harness.far.close()
    assert turns.waiting == 0
    loop.run_until_complete(asyncio.sleep(0))


def test_a_file_system_without_sendfile_is_read_instead(
    harness: Harness, big, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "sendfile", refuse)
    harness.link.send([b"head", whole(big), b"tail"])
    assert harness.drain() == b"head" + big.read_at(0, 6 * MIB) + b"tail"
    assert harness.faults == []


def test_a_range_that_cannot_be_read_breaks_the_link(harness: Harness, big, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "rotten")

    monkeypatch.setattr(os, "sendfile", fail)
    harness.link.send([whole(big)])
    assert harness.run_until(lambda: harness.heard)
    assert harness.heard == ["closed"]
    assert [error.errno for error in harness.faults] == [errno.EIO]
    big.close()
    assert big.descriptor() is None, "the range was released"


def test_small_ranges_travel_with_their_neighbours(harness: Harness, big, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", pytest.fail)
    big.retain()
    harness.link.send([b"head", FileRange(big, 10, 100), b"tail"])
    assert harness.drain() == b"head" + big.read_at(10, 100) + b"tail"


def test_a_small_range_past_the_end_breaks_the_link_and_releases_all(harness: Harness, big) -> None:
    for _ in range(3):
        big.retain()
    harness.link.send([FileRange(big, 0, MIB), FileRange(big, big.size() - 10, 100), FileRange(big, 0, MIB)])
    assert harness.run_until(lambda: harness.heard)
    assert harness.heard == ["closed"]
    assert [error.errno for error in harness.faults] == [errno.EIO]
    big.close()
    assert big.descriptor() is None


def test_a_peer_that_never_reads_cannot_block_a_close_forever(
    harness: Harness, big, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CLOSE_WAIT_SECONDS", 0.1)
    for _ in range(5):
        harness.link.send([whole(big)])
    harness.run_until(lambda: False, seconds=0.001)
    asked = time.monotonic()
    harness.link.close()
    assert harness.run_until(lambda: harness.heard)
    assert time.monotonic() - asked > 0.09, "the peer had its time"
    assert harness.heard == ["closed"]
    big.close()
    assert big.descriptor() is None


def test_a_fault_of_the_world_in_a_handler_breaks_its_link_at_once(harness: Harness) -> None:
    def fail(count: int) -> None:
        harness.link.send([b"half an answer"])
        raise OSError(errno.EMFILE, "too many open files")

    harness.received = fail  # type: ignore[method-assign]
    harness.far.send(b"x")
    assert harness.run_until(lambda: harness.heard)
    assert harness.heard == ["closed"]
    assert [type(error) for error in harness.faults] == [OSError]


@pytest.mark.parametrize("where", ["received", "drained", "closed"])
def test_a_bug_of_ours_reaches_the_loop(harness: Harness, where: str) -> None:
    def fail(*_: object) -> None:
        raise KeyError("our bug")

    bugs: list[BaseException] = []
    harness.loop.set_exception_handler(lambda _, context: bugs.append(context["exception"]))
    setattr(harness, where, fail)
    harness.far.send(b"x")
    harness.link.send([bytes(8 * MIB)])
    harness.drain()
    if where == "closed":
        harness.link.abort()
    assert harness.run_until(lambda: bugs)
    assert [type(error) for error in bugs] == [KeyError]
    assert harness.faults == []


def test_a_reset_is_the_end_and_no_fault(harness: Harness) -> None:
    harness.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    harness.far.close()
    assert harness.run_until(lambda: harness.heard)
    harness.link.send([b"too late"])
    harness.link.pause_reading()
    harness.link.resume_reading()
    assert harness.heard == ["closed"]
    assert harness.faults == []


def test_a_full_buffer_is_read_on_a_few_times_only(harness: Harness) -> None:
    harness.link.pause_reading()
    harness.far.send(bytes(10_000))
    time.sleep(0.02)
    harness.link.resume_reading()
    harness.link._on_readable()
    assert harness.heard == ["received 1000"] * link_module.READS_PER_WAKE
    assert harness.run_until(lambda: len(harness.heard) == 10)
