"""Accepting: turned away, out of descriptors, both address families. (What links promise: tests/ports.)"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import resource
import socket
import time
from collections.abc import Callable

import pytest
from tests.support.own_process import in_own_process

from millpond.base.ports import Link
from millpond.node.network import SocketNetwork, TooManyWait


class Quiet:
    """A handler that only notes the end."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_closed = False

    def buffer(self) -> memoryview:
        return memoryview(bytearray(100))

    def received(self, count: int) -> None: ...

    def drained(self) -> None: ...

    def closed(self) -> None:
        self.is_closed = True


class Harness:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.faults: list[tuple[object, BaseException]] = []
        self.served: list[Quiet] = []
        self.network = SocketNetwork(loop, on_fault=lambda link, error: self.faults.append((link, error)))

    def accept(self, link: Link) -> Quiet:
        self.served.append(Quiet(link))
        return self.served[-1]

    def run_until(self, condition: Callable[[], object], seconds: float = 60) -> bool:
        async def wait() -> bool:
            deadline = time.monotonic() + seconds
            while not condition():
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(0.001)
            return True

        return self.loop.run_until_complete(wait())


@pytest.fixture
def harness(loop: asyncio.AbstractEventLoop):
    harness = Harness(loop)
    yield harness
    for peer in harness.served:
        peer.link.abort()
    loop.run_until_complete(asyncio.sleep(0))


def test_names_of_both_ends(harness: Harness) -> None:
    listener = harness.network.listen("localhost", 0, harness.accept)
    assert listener.host == "127.0.0.1"
    with socket.create_connection((listener.host, listener.port)) as client:
        assert harness.run_until(lambda: harness.served)
        link = harness.served[0].link
        assert link.peer == "{}:{}".format(*client.getsockname())
        assert link.local_host == "127.0.0.1"
    listener.close()


def test_one_wildcard_serves_both_families(harness: Harness) -> None:
    try:
        listener = harness.network.listen("::", 0, harness.accept)
    except OSError:
        pytest.skip("no IPv6 here")
    with socket.create_connection(("127.0.0.1", listener.port)), socket.create_connection(("::1", listener.port)):
        assert harness.run_until(lambda: len(harness.served) == 2)
    assert sorted(peer.link.local_host for peer in harness.served) == ["127.0.0.1", "::1"]
    listener.close()


def test_sockets_are_set_up_for_small_replies(harness: Harness) -> None:
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    with socket.create_connection((listener.host, listener.port)):
        assert harness.run_until(lambda: harness.served)
        sock = harness.served[0].link._socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not sock.getblocking()
    listener.close()


def test_a_bug_while_accepting_reaches_the_loop(harness: Harness) -> None:
    def accept(link: Link) -> Quiet:
        raise KeyError("our bug")

    bugs: list[BaseException] = []
    harness.network.loop.set_exception_handler(lambda _, context: bugs.append(context["exception"]))
    listener = harness.network.listen("127.0.0.1", 0, accept)
    with socket.create_connection((listener.host, listener.port)):
        assert harness.run_until(lambda: bugs)
    assert [type(error) for error in bugs] == [KeyError]
    assert harness.faults == []
    listener.close()


def test_a_bug_while_serving_one_connection_does_not_block_the_others(harness: Harness) -> None:
    def accept(link: Link) -> Quiet:
        served = harness.accept(link)
        if len(harness.served) == 2:
            raise KeyError("our bug")
        return served

    bugs: list[BaseException] = []
    harness.network.loop.set_exception_handler(lambda _, context: bugs.append(context["exception"]))
    listener = harness.network.listen("127.0.0.1", 0, accept)
    clients = arrive(listener.port, "127.0.0.1", 5)
    assert harness.run_until(lambda: len(harness.served) == 5, 10)
    clients += arrive(listener.port, "127.0.0.1", 1)
    assert harness.run_until(lambda: len(harness.served) == 6, 10)
    assert [type(error) for error in bugs] == [KeyError]
    listener.close()
    for client in clients:
        client.close()


def test_out_of_descriptors_a_peer_cannot_be_reached(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    made: list[Quiet] = []

    def handler(link: Link) -> Quiet:
        made.append(Quiet(link))
        return made[0]

    with monkeypatch.context() as exhausted:
        exhausted.setattr(socket, "socket", no_socket)
        link = harness.network.connect("127.0.0.1", 9, handler)
    link.send([b"this is not received"])
    assert (link.peer, link.unsent_bytes(), made[0].is_closed) == ("127.0.0.1:9", 0, False)
    assert harness.run_until(lambda: made[0].is_closed)
    assert [error.errno for _, error in harness.faults] == [errno.EMFILE]


@in_own_process
def test_out_of_descriptors_it_waits_and_recovers(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.node.network.EXHAUSTED_PAUSE_SECONDS", 2.0)
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    clients = [socket.socket() for _ in range(8)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/dev/fd"))
    fillers: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 10, hard))
        while True:
            try:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        # uvloop takes two of these four while it runs.
        for _ in range(4):
            os.close(fillers.pop())
        for client in clients:
            client.connect((listener.host, listener.port))
        assert harness.run_until(lambda: len(harness.served) >= 2 and harness.faults)
        harness.run_until(lambda: False, seconds=0.1)
        assert [error.errno for _, error in harness.faults] == [errno.EMFILE], "one try, then a pause"
    finally:
        for descriptor in fillers:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(harness.served) < len(clients)
    with socket.create_connection((listener.host, listener.port)) as late:
        name = "{}:{}".format(*late.getsockname())
        assert harness.run_until(lambda: harness.served[-1].link.peer == name)
    assert len(harness.served) == len(clients), "one was turned away, the others only waited"
    for client in clients:
        client.close()
    listener.close()


def test_a_listener_closed_while_it_waits_stays_closed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.node.network.EXHAUSTED_PAUSE_SECONDS", 0.01)
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    listener._pause(OSError(errno.EMFILE, "too many"))
    listener.close()
    harness.run_until(lambda: False, seconds=0.05)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((listener.host, listener.port))


@in_own_process
def test_descriptors_are_given_back(harness: Harness) -> None:
    harness.run_until(lambda: True)
    before = len(os.listdir("/dev/fd"))
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    for number in range(20):
        with socket.create_connection((listener.host, listener.port)):
            assert harness.run_until(lambda number=number: len(harness.served) > number)
        assert harness.run_until(lambda: harness.served[-1].is_closed)
    listener.close()
    harness.run_until(lambda: False, seconds=0.01)
    assert len(os.listdir("/dev/fd")) <= before


class SteadyPace:
    """Asks for the same rest after each; keeps the CPU times that it receives."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def rest_seconds(self, now: float, used: float) -> float:
        self.used.append(used)
        return 0.005


def test_a_crowd_that_comes_at_once_takes_turns_with_those_who_work(harness: Harness) -> None:
    """One in a turn of the loop, then a rest as the pace wants it, which hears what each has cost."""
    moments: list[float] = []
    turns: list[int] = [0]

    def accept(link: Link) -> Quiet:
        moments.append(time.monotonic())
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return harness.accept(link)

    def turn() -> bool:
        turns[0] += 1
        return len(moments) == len(crowd)

    listener = harness.network.listen("127.0.0.1", 0, accept)
    listener._pace = pace = SteadyPace()
    crowd = [socket.create_connection((listener.host, listener.port)) for _ in range(15)]
    assert harness.run_until(turn)
    assert turns[0] >= len(crowd), "working connections have turns in between"
    assert min(after - before for before, after in itertools.pairwise(moments)) > 0.0045
    assert min(after - before for before, after in itertools.pairwise(pace.used)) > 0.003
    listener.close()
    for each in crowd:
        each.close()


def test_a_listener_may_be_closed_by_whom_it_lets_in_and_while_it_rests(harness: Harness) -> None:
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    crowd = [socket.create_connection((listener.host, listener.port)) for _ in range(8)]
    assert harness.run_until(lambda: len(harness.served) >= 4)
    listener._rest(0.01)
    listener.close()
    assert not harness.run_until(lambda: harness.faults, seconds=0.05)

    def accept(link: Link) -> Quiet:
        if len(harness.served) == 7:
            other.close()
        return harness.accept(link)

    del harness.served[4:]
    other = harness.network.listen("127.0.0.1", 0, accept)
    crowd += [socket.create_connection((other.host, other.port)) for _ in range(4)]
    assert harness.run_until(lambda: len(harness.served) == 8)
    assert not harness.run_until(lambda: harness.faults, seconds=0.05)
    for each in crowd:
        each.close()


def arrive(port: int, source: str, count: int) -> list[socket.socket]:
    """Connections from an address of this machine."""
    made = []
    for _ in range(count):
        sock = socket.socket()
        sock.bind((source, 0))
        sock.connect(("127.0.0.1", port))
        made.append(sock)
    return made


def host_of(served: Quiet) -> str:
    return served.link.peer.rpartition(":")[0]


def test_another_address_waits_for_one_turn_of_a_burst(harness: Harness) -> None:
    """The kernel accepts in order of arrival; a late connection is served among the first all the same."""
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    crowd = arrive(listener.port, "127.0.0.2", 300)
    (guest,) = arrive(listener.port, "127.0.0.3", 1)
    assert harness.run_until(lambda: any(host_of(each) == "127.0.0.3" for each in harness.served))
    before = [host_of(each) for each in harness.served].index("127.0.0.3")
    assert before < 60, f"after {before} of the crowd"
    assert harness.run_until(lambda: len(harness.served) == 301), "and so are all others"
    listener.close()
    for each in (*crowd, guest):
        each.close()


def test_a_burst_from_one_address_is_served_completely_and_in_order(harness: Harness) -> None:
    """Also where more come than may wait here: they wait in the kernel."""
    harness.network.waiting_max = 50
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    burst = arrive(listener.port, "127.0.0.2", 600)
    assert harness.run_until(lambda: len(harness.served) == 600)
    assert [each.link.peer for each in harness.served] == ["{}:{}".format(*each.getsockname()) for each in burst]
    assert harness.faults == []
    listener.close()
    for each in burst:
        each.close()


def test_a_crowd_that_does_not_end_makes_room_for_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last connections are refused, waiting ones keep their position, and that is reported once."""
    monkeypatch.setattr("millpond.node.network.PATIENCE_SECONDS", 0.0)
    harness.network.waiting_max = 20
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    crowd = arrive(listener.port, "127.0.0.2", 400)
    (guest,) = arrive(listener.port, "127.0.0.3", 1)
    assert harness.run_until(lambda: any(host_of(each) == "127.0.0.3" for each in harness.served))
    before = [host_of(each) for each in harness.served].index("127.0.0.3")
    assert before < 60, f"after {before} of the crowd"
    harness.run_until(lambda: False, seconds=0.2)
    assert len(harness.served) < 200
    assert harness.served[0].link.peer == "{}:{}".format(*crowd[0].getsockname())
    ((link, fault),) = harness.faults
    assert link is None
    assert isinstance(fault, TooManyWait)
    assert "127.0.0.2" in str(fault)
    (late,) = arrive(listener.port, "127.0.0.2", 1)
    assert harness.run_until(lambda: harness.served[-1].link.peer == "{}:{}".format(*late.getsockname())), (
        "once it is over"
    )
    listener.close()
    for each in (*crowd, guest, late):
        each.close()


def test_a_connection_that_left_before_its_turn_is_not_served(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.network.GONE_SECONDS", 0.0)
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    crowd = arrive(listener.port, "127.0.0.2", 200)
    for each in crowd[:190]:
        each.close()
    crowd[190].sendall(b"x")
    crowd[190].close()
    served = {"{}:{}".format(*each.getsockname()) for each in crowd[191:]}
    assert harness.run_until(lambda: served <= {each.link.peer for each in harness.served})
    assert len(harness.served) == 10, "a connection that has sent data is served"
    listener.close()
    for each in crowd[191:]:
        each.close()


def test_those_who_wait_go_with_the_listener(harness: Harness) -> None:
    listener = harness.network.listen("127.0.0.1", 0, harness.accept)
    crowd = arrive(listener.port, "127.0.0.2", 100)
    assert harness.run_until(lambda: harness.served)
    listener.close()
    served = {each.link.peer for each in harness.served}
    waited = [each for each in crowd if "{}:{}".format(*each.getsockname()) not in served]
    assert waited
    for each in waited:
        each.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
    for each in crowd:
        each.close()
