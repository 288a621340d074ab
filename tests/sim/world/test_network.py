"""What can go wrong between simulated hosts. (What a link promises in good weather: tests/ports.)"""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import MalformedMessage
from millpond.base.tls import ClientAuth, ClientTls, ServerTls, TlsFiles
from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.network import SimNetwork


class Scene:
    """A server that echoes on host `b`, and clients on host `a`."""

    def __init__(self, make_peer, seed: int = 1) -> None:
        self.clock = VirtualClock(seed, shuffle=True)
        self.network = SimNetwork(self.clock, seed)
        self.make_peer = make_peer
        self.served: list = []
        self.listener = self.network.at("b").listen("0.0.0.0", 9092, self._accept)

    def _accept(self, link):
        self.served.append(self.make_peer(link, echo=True))
        return self.served[-1]

    def connect(self):
        made = []

        def make(link):
            made.append(self.make_peer(link))
            return made[0]

        self.network.at("a").connect("b", 9092, make)
        return made[0]


@pytest.fixture
def scene(make_peer) -> Scene:
    return Scene(make_peer)


def test_streams_arrive_in_random_pieces_by_seed(make_peer) -> None:
    def pieces(seed: int) -> list[bytes]:
        scene = Scene(make_peer, seed)
        client = scene.connect()
        for number in range(50):
            client.link.send([b"%02d" % number * 100])
        scene.clock.run_for(1000)
        assert client.data == b"".join(b"%02d" % number * 100 for number in range(50))
        return client.pieces

    assert pieces(1) == pieces(1)
    assert pieces(1) != pieces(2)
    assert len({len(piece) for piece in pieces(1)}) > 3


def test_names_of_both_ends(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    assert (client.link.peer, client.link.local_host) == ("b:9092", "a")
    assert scene.served[0].link.peer.startswith("a:")
    assert scene.served[0].link.local_host == "b"


def test_connecting_without_a_listener(scene: Scene) -> None:
    scene.listener.close()
    client = scene.connect()
    scene.clock.run_for(10)
    assert client.closed_count == 1
    assert scene.served == []


def test_a_partition_holds_everything_and_healing_delivers_it(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.partition("a", "b")
    for number in range(20):
        client.link.send([b"%02d" % number])
        scene.clock.run_for(1000)
    assert (client.data, client.closed_count) == (b"", 0)
    scene.network.heal()
    scene.clock.run_for(100)
    assert client.data == b"".join(b"%02d" % number for number in range(20))


def test_a_close_behind_a_partition_is_heard_after_it(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.partition("a", "b")
    client.link.close()
    scene.clock.run_for(5_000)
    for _ in range(3):
        scene.network.connect("b", 9092, scene.make_peer, source="c")
    assert (client.closed_count, scene.served[0].closed_count) == (1, 0)
    scene.network.heal()
    scene.clock.run_for(100)
    assert scene.served[0].closed_count == 1


def test_a_blackhole_swallows_one_way_only(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.blackhole("b", "a")
    client.link.send([b"request"])
    scene.clock.run_for(10_000)
    assert scene.served[0].data == b"request"
    assert client.data == b""


def test_connecting_through_a_partition_waits_then_gives_up(scene: Scene) -> None:
    scene.network.partition("a", "b")
    patient = scene.connect()
    scene.clock.run_for(5_000)
    assert patient.closed_count == 0
    scene.network.heal()
    patient.link.send([b"x"])
    scene.clock.run_for(2_000)
    assert patient.data == b"x"
    scene.network.partition("a", "b")
    hopeless = scene.connect()
    scene.clock.run_for(60_000)
    assert hopeless.closed_count == 1


def test_a_reset_reaches_both_ends_and_loses_what_was_under_way(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    client.link.send([bytes(1000)])
    scene.network.reset(client.link)
    scene.clock.run_for(100)
    assert (client.closed_count, scene.served[0].closed_count) == (1, 1)
    assert scene.served[0].data == b""
    assert scene.network.links() == []


def test_power_lost_is_silence_until_the_host_is_back(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.stop_host("b", silently=True)
    client.link.send([b"anyone?"])
    scene.clock.run_for(10_000)
    assert client.closed_count == 0
    scene.network.start_host("b")
    client.link.send([b"hello?"])
    scene.clock.run_for(100)
    assert client.closed_count == 1, "the new kernel knows nothing of the old connection"
    assert scene.served[0].closed_count == 0, "the old process is not there to be told"


def test_a_killed_process_breaks_its_connections(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.stop_host("b", silently=False)
    scene.clock.run_for(10)
    assert client.closed_count == 1
    late = scene.connect()
    scene.clock.run_for(10)
    assert late.closed_count == 1


def test_a_fault_of_a_peer_is_kept_and_our_own_is_loud(scene: Scene) -> None:
    for error in (MalformedMessage("bad"), KeyError("our bug")):
        client = scene.connect()
        scene.clock.run_for(10)

        def fail(count: int, error: Exception = error) -> None:
            raise error

        scene.served[-1].received = fail
        client.link.send([b"x"])
        if isinstance(error, MalformedMessage):
            scene.clock.run_for(100)
            assert client.closed_count == 1
            assert [kept for _, kept in scene.network.faults] == [error]
        else:
            with pytest.raises(KeyError):
                scene.clock.run_for(100)


def test_closing_over_unread_bytes_resets_the_peer(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    server = scene.served[0]
    server.link.pause_reading()
    client.link.send([bytes(1 << 20)])
    scene.clock.run_for(100)
    assert client.link.unsent_bytes() > 0
    server.link.close()
    scene.clock.run_for(100)
    assert (client.closed_count, client.link.unsent_bytes()) == (1, 0)


def test_a_peer_that_never_reads_cannot_hold_a_close_for_ever(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    client.link.pause_reading()
    server = scene.served[0]
    server.link.send([bytes(1 << 20)])
    server.link.close()
    scene.clock.run_for(9_000)
    assert server.closed_count == 0
    scene.clock.run_for(2_000)
    assert server.closed_count == 1


def test_one_way_of_one_pair_is_slow(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.set_path("a", "b", latency_ms=(500, 500))
    other = []
    scene.network.at("c").connect("b", 9092, lambda link: other.append(scene.make_peer(link)) or other[0])
    scene.clock.run_for(10)
    began = scene.clock.now_ms
    client.link.send([b"x"])
    other[0].link.send([b"y"])
    assert scene.clock.run_until(lambda: other[0].data == b"y")
    assert scene.clock.now_ms - began < 20, "others are as quick as ever"
    assert scene.clock.run_until(lambda: client.data == b"x")
    assert 500 <= scene.clock.now_ms - began < 520


def test_what_is_lost_is_sent_again_and_stays_in_order(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(10)
    scene.network.set_path("a", "b", loss_share=0.5)
    sent = b"".join(b"%03d" % number for number in range(200))
    began = scene.clock.now_ms
    for number in range(200):
        client.link.send([b"%03d" % number])
    assert scene.clock.run_until(lambda: client.data == sent)
    assert scene.clock.now_ms - began > 200
    scene.network.heal()
    began = scene.clock.now_ms
    client.link.send([b"quick"])
    assert scene.clock.run_until(lambda: client.data.endswith(b"quick"))
    assert scene.clock.now_ms - began < 20


@pytest.mark.parametrize(
    ("server", "client", "is_let_in"),
    [
        (None, None, True),
        (ServerTls(TlsFiles("CN=b")), ClientTls(TlsFiles()), True),
        (ServerTls(TlsFiles("CN=b")), None, False),
        (None, ClientTls(TlsFiles()), False),
        (ServerTls(TlsFiles("CN=b"), ClientAuth.REQUIRED), ClientTls(TlsFiles()), False),
        (ServerTls(TlsFiles("CN=b"), ClientAuth.REQUIRED), ClientTls(TlsFiles("CN=a")), True),
    ],
)
def test_both_ends_speak_tls_or_none(make_peer, server, client, is_let_in) -> None:
    clock = VirtualClock(1)
    network = SimNetwork(clock, 1)
    served: list[Any] = []

    network.listen("b", 1, lambda link: served.append(make_peer(link)) or served[-1], server, "SAFE")
    made: list[Any] = []
    network.connect("b", 1, lambda link: made.append(make_peer(link)) or made[-1], client, source="a")
    clock.run_for(1_000)
    assert bool(served) is is_let_in
    assert made[0].closed_count == (not is_let_in)
    if is_let_in:
        assert served[0].link.listener == "SAFE"
        assert served[0].link.is_encrypted is (server is not None)
        wanted = server is not None and server.client_auth is ClientAuth.REQUIRED
        assert served[0].link.certificate_name == ("CN=a" if wanted else None)


def test_a_way_that_rejects_refuses_connections_and_breaks_those_that_are_used(scene: Scene) -> None:
    client, idle = scene.connect(), scene.connect()
    client.link.send([b"before"])
    scene.clock.run_for(1_000)
    assert client.data == b"before"
    scene.network.reject("a", "b")
    client.link.send([b"after"])
    late = scene.connect()
    scene.clock.run_for(1_000)
    assert (client.closed_count, late.closed_count) == (1, 1)
    assert idle.closed_count == 0, "nothing was sent on it"
    assert [peer.closed_count for peer in scene.served] == [0, 0], "the other end is not told"
    assert client.data == b"before"
    scene.network.heal()
    again = scene.connect()
    again.link.send([b"again"])
    scene.clock.run_for(1_000)
    assert again.data == b"again"


def test_a_way_that_rejects_answers_only_one_direction(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(1_000)
    scene.network.reject("b", "a")
    client.link.send([b"echo"])
    scene.clock.run_for(1_000)
    assert [peer.closed_count for peer in scene.served] == [1], "its answer was rejected"
    assert client.closed_count == 0
    late = scene.connect()
    scene.clock.run_for(5_000)
    assert late.closed_count == 0, "the acknowledgement is lost without an error"
    scene.network.mend("b", "a")
    scene.clock.run_for(5_000)
    late.link.send([b"late"])
    scene.clock.run_for(1_000)
    assert late.data == b"late"


def test_connections_between_two_hosts_are_broken_at_both_ends(scene: Scene) -> None:
    client = scene.connect()
    scene.clock.run_for(1_000)
    scene.network.reset_between("a", "c")
    scene.clock.run_for(1_000)
    assert client.closed_count == 0
    scene.network.reset_between("a", "b")
    scene.clock.run_for(1_000)
    assert (client.closed_count, scene.served[0].closed_count) == (1, 1)
