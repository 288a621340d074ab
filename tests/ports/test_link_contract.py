"""What every link behind the port promises: the same plays over sockets (uvloop, asyncio, with and without sendfile)
and over the simulated network."""

from __future__ import annotations

import random

import pytest

from millpond.base.errors import MalformedMessage
from millpond.base.ports import FileRange, Link

MIB = 1 << 20


class Peer:
    """A handler that keeps all it hears; `on_data` may answer."""

    def __init__(self, link: Link, room: int = 65536, on_data=None) -> None:
        self.link = link
        self.data = bytearray()
        self.drained_count = 0
        self.closed_count = 0
        self.on_data = on_data
        self._room = memoryview(bytearray(room))

    def buffer(self) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        assert 0 < count <= len(self._room)
        assert not self.closed_count, "nothing arrives after the end"
        self.data += self._room[:count]
        if self.on_data:
            self.on_data(self, bytes(self._room[:count]))

    def drained(self) -> None:
        assert self.link.unsent_bytes() == 0
        self.drained_count += 1

    def closed(self) -> None:
        self.closed_count += 1


class CountedFile:
    """A file that counts how it is held."""

    def __init__(self, file) -> None:
        self.file = file
        self.retained = self.released = 0

    def range(self, position: int, length: int) -> FileRange:
        self.retain()
        return FileRange(self, position, length)

    def retain(self) -> None:
        self.retained += 1
        self.file.retain()

    def release(self) -> None:
        self.released += 1
        self.file.release()

    def __getattr__(self, name: str):
        return getattr(self.file, name)


class LinkPair:
    """One listener; `meet` gives both ends of a new connection."""

    def __init__(self, environment) -> None:
        self.environment = environment
        self.server_options: dict = {}
        self.served: list[Peer] = []
        self.listener = environment.network.listen("127.0.0.1", 0, self._accept)

    def _accept(self, link: Link) -> Peer:
        self.served.append(Peer(link, **self.server_options))
        return self.served[-1]

    def meet(self, client=None, **server) -> tuple[Peer, Peer]:
        self.server_options = server
        made: list[Peer] = []

        def make(link: Link) -> Peer:
            made.append(Peer(link, **(client or {})))
            return made[0]

        known = len(self.served)
        self.environment.connect(self.listener.port, make)
        assert self.environment.run_until(lambda: len(self.served) > known)
        return made[0], self.served[-1]

    def file(self, data: bytes) -> CountedFile:
        file = self.environment.disk.open(f"{self.environment.folder}/data", create=True)
        file.append([data])
        return CountedFile(file)


@pytest.fixture
def links(environment):
    links = LinkPair(environment)
    yield links
    for peer in links.served:
        peer.link.abort()
    links.listener.close()


def test_bytes_arrive_in_order(environment, links) -> None:
    client, server = links.meet()
    client.link.send([b"one ", bytearray(b"two "), memoryview(b"three ")])
    client.link.send([b""])
    client.link.send([])
    client.link.send([b"four"])
    assert environment.run_until(lambda: len(server.data) >= 18)
    assert server.data == b"one two three four"
    assert server.link.peer.rpartition(":")[2].isdigit()


def test_echo_of_many_small_frames(environment, links) -> None:
    client, server = links.meet(on_data=lambda peer, data: peer.link.send([data]))
    sent = b"".join(b"%05d" % number for number in range(2_000))
    for start in range(0, len(sent), 50):
        client.link.send([sent[start : start + 50]])
    assert environment.run_until(lambda: len(client.data) >= len(sent))
    assert client.data == server.data == sent


def test_ten_mebibytes_each_way_at_once(environment, links) -> None:
    client, server = links.meet()
    up, down = random.Random(1).randbytes(10 * MIB), random.Random(2).randbytes(10 * MIB)
    client.link.send([up[: 3 * MIB], up[3 * MIB :]])
    server.link.send([down])
    assert client.link.unsent_bytes() > 0
    assert environment.run_until(lambda: len(server.data) >= len(up) and len(client.data) >= len(down))
    assert server.data == up
    assert client.data == down
    assert environment.run_until(lambda: client.drained_count == server.drained_count == 1)
    assert client.link.unsent_bytes() == server.link.unsent_bytes() == 0


def test_a_thousand_buffers_and_then_some(environment, links) -> None:
    client, server = links.meet()
    parts = [random.Random(number).randbytes(number % 700) for number in range(3_000)]
    client.link.send(parts)
    client.link.send(parts)
    whole = b"".join(parts) * 2
    assert environment.run_until(lambda: len(server.data) >= len(whole))
    assert server.data == whole


def test_file_ranges_between_buffers(environment, links) -> None:
    client, server = links.meet()
    data = random.Random(3).randbytes(6 * MIB)
    file = links.file(data)
    server.link.send([b"head", file.range(100, 5 * MIB), b"middle", file.range(0, 10), file.range(7, 0), b"tail"])
    server.link.send([file.range(MIB, 100_000)])
    expected = b"head" + data[100 : 100 + 5 * MIB] + b"middle" + data[:10] + b"tail" + data[MIB : MIB + 100_000]
    file.close()
    assert environment.run_until(lambda: len(client.data) >= len(expected))
    assert client.data == expected
    assert environment.run_until(lambda: file.released == 4)
    assert file.retained == 4
    with pytest.raises(OSError):
        file.read_at(0, 1)


def test_abort_releases_every_range_once(environment, links) -> None:
    client, server = links.meet()
    file = links.file(bytes(4 * MIB))
    client.link.pause_reading()
    for _ in range(20):
        server.link.send([b"head", file.range(0, 4 * MIB), file.range(0, 100)])
    assert server.link.unsent_bytes() > 10 * MIB
    server.link.abort()
    assert file.released == file.retained == 40
    server.link.send([file.range(0, 4 * MIB)])
    assert file.released == file.retained == 41
    assert server.link.unsent_bytes() == 0
    assert server.closed_count == 0, "told by the loop, not inside the call"
    assert environment.run_until(lambda: server.closed_count == 1)
    client.link.resume_reading()
    assert environment.run_until(lambda: client.closed_count == 1)
    server.link.abort()
    server.link.close()
    assert not environment.run_until(lambda: client.closed_count + server.closed_count > 2, seconds=0.05)
    assert environment.faults == []


def test_a_peer_that_leaves_releases_the_ranges(environment, links) -> None:
    client, server = links.meet()
    file = links.file(bytes(4 * MIB))
    client.link.pause_reading()
    for _ in range(10):
        server.link.send([file.range(0, 4 * MIB)])
    client.link.abort()
    assert environment.run_until(lambda: server.closed_count == 1)
    assert file.released == file.retained == 10
    assert environment.faults == []


def test_a_file_shorter_than_promised_breaks_the_link(environment, links) -> None:
    client, server = links.meet()
    file = links.file(bytes(100_000))
    server.link.send([b"head", file.range(0, 200_000)])
    assert environment.run_until(lambda: server.closed_count == client.closed_count == 1)
    assert len(client.data) <= 100_004
    assert file.released == file.retained == 1
    assert [type(fault) for fault in environment.faults] == [OSError]


def test_close_sends_what_is_queued(environment, links) -> None:
    client, server = links.meet()
    data = random.Random(4).randbytes(8 * MIB)
    server.link.send([data])
    server.link.close()
    server.link.send([b"too late"])
    assert environment.run_until(lambda: client.closed_count == server.closed_count == 1)
    assert client.data == data
    assert server.drained_count == 0


def test_the_end_of_what_a_peer_sends_lets_queued_replies_out(environment, links) -> None:
    """Half close: the client is done sending while 8 MiB of reply are still on their way to it."""
    reply = random.Random(5).randbytes(8 * MIB)
    client, server = links.meet(on_data=lambda peer, _: peer.link.send([reply]))
    client.link.send([b"x"])
    assert environment.run_until(lambda: server.link.unsent_bytes() > 0 or len(client.data) == len(reply))
    half_close(client.link)
    assert environment.run_until(lambda: server.closed_count == 1)
    assert environment.run_until(lambda: len(client.data) == len(reply))
    assert client.data == reply


def half_close(link) -> None:
    """End one direction only; no port has this, but peers do it."""
    if hasattr(link, "_socket"):
        link._socket.shutdown(1)
    else:
        link._put_on_wire(b"")


def test_pause_reading_holds_the_sender_back(environment, links) -> None:
    client, server = links.meet()
    server.link.pause_reading()
    server.link.pause_reading()
    data = random.Random(6).randbytes(20 * MIB)
    client.link.send([data])
    assert not environment.run_until(lambda: bool(server.data), seconds=0.1)
    assert client.link.unsent_bytes() > 5 * MIB
    assert client.drained_count == 0
    server.link.resume_reading()
    server.link.resume_reading()
    assert environment.run_until(lambda: len(server.data) >= len(data))
    assert server.data == data
    assert environment.run_until(lambda: client.drained_count == 1)


def test_pausing_inside_received_stops_at_once(environment, links) -> None:
    client, server = links.meet(room=10, on_data=lambda peer, _: peer.link.pause_reading())
    client.link.send([bytes(100)])
    assert environment.run_until(lambda: bool(server.data))
    heard = 0
    while len(server.data) < 100:
        assert not environment.run_until(lambda heard=heard: len(server.data) > heard + 10, seconds=0.01)
        heard = len(server.data)
        server.link.resume_reading()
        assert environment.run_until(lambda heard=heard: len(server.data) > heard or heard == 100)


def test_closing_inside_received_is_final(environment, links) -> None:
    def answer(peer: Peer, _: bytes) -> None:
        peer.link.send([b"bye"])
        peer.link.close()

    client, server = links.meet(room=1, on_data=answer)
    client.link.send([b"x"])
    assert environment.run_until(lambda: client.closed_count == server.closed_count == 1)
    assert client.data == b"bye"
    assert server.data == b"x"


def test_a_fault_of_the_peer_closes_its_link_only(environment, links) -> None:
    def refuse(peer: Peer, _: bytes) -> None:
        raise MalformedMessage("not a frame")

    other_client, other = links.meet()
    client, server = links.meet(on_data=refuse)
    client.link.send([b"x"])
    assert environment.run_until(lambda: client.closed_count == server.closed_count == 1)
    assert [type(fault) for fault in environment.faults] == [MalformedMessage]
    other_client.link.send([b"still here"])
    assert environment.run_until(lambda: other.data == b"still here")


def test_turned_away(environment) -> None:
    listener = environment.network.listen("127.0.0.1", 0, lambda _: None)
    made: list[Peer] = []

    def make(link: Link) -> Peer:
        made.append(Peer(link))
        return made[0]

    environment.connect(listener.port, make)
    assert environment.run_until(lambda: bool(made) and made[0].closed_count == 1)
    listener.close()
    listener.close()


def test_a_port_is_taken_once(environment, links) -> None:
    with pytest.raises(OSError):
        environment.network.listen("127.0.0.1", links.listener.port, lambda _: None)
    links.listener.close()
    environment.network.listen("127.0.0.1", links.listener.port, lambda _: None).close()


def test_open_links_outlive_their_listener(environment, links) -> None:
    client, server = links.meet()
    links.listener.close()
    client.link.send([b"hello"])
    assert environment.run_until(lambda: server.data == b"hello")


def test_many_links_at_once(environment, links) -> None:
    pairs = [links.meet(on_data=lambda peer, data: peer.link.send([data])) for _ in range(50)]
    for number, (client, _) in enumerate(pairs):
        client.link.send([b"%d" % number * 1000])
    assert environment.run_until(lambda: all(len(client.data) == len(server.data) > 0 for client, server in pairs))
    assert environment.run_until(lambda: all(c.data == b"%d" % n * 1000 for n, (c, _) in enumerate(pairs)))


def test_what_is_sent_before_the_connection_stands_arrives(environment) -> None:
    served: list[Peer] = []

    def accept(link: Link) -> Peer:
        served.append(Peer(link))
        return served[0]

    listener = environment.network.listen("127.0.0.1", 0, accept)
    environment.network.connect("127.0.0.1", listener.port, Peer).send([b"early"])
    assert environment.run_until(lambda: bool(served) and served[0].data == b"early")
    served[0].link.abort()
    listener.close()


def test_a_peer_that_does_not_listen_shows_as_closed(environment) -> None:
    listener = environment.network.listen("127.0.0.1", 0, Peer)
    listener.close()
    made: list[Peer] = []
    link = environment.network.connect("127.0.0.1", listener.port, lambda link: made.append(Peer(link)) or made[0])
    link.send([b"anyone?"])
    assert environment.run_until(lambda: made[0].closed_count == 1)
    assert environment.run_until(lambda: not environment.faults)
