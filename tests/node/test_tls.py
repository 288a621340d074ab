"""TLS of a node's own listeners: who is accepted, who is not, and who must not wait. tests/ports has the contract.

The other side is Python's own SSLSocket, on a thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from millpond.base.ports import FileRange, Link
from millpond.base.tls import ClientAuth, ClientTls, ServerTls, TlsFiles
from millpond.node.disk import RealDisk
from millpond.node.network import SocketNetwork
from millpond.node.tls_contexts import UnusableFiles
from millpond.node.tls_link import RECORDS_PER_WAKE, TlsRefused
from support.tls import Certificates


class Echo:
    """A handler that answers with what it heard."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_closed = False
        self.secured: list[str | None] = []
        self.data = bytearray()
        self.counts: list[int] = []
        self.room = memoryview(bytearray(1 << 16))
        link.on_secured = lambda: self.secured.append(link.certificate_name)

    def buffer(self) -> memoryview:
        return self.room

    def received(self, count: int) -> None:
        self.counts.append(count)
        self.data += self.room[:count]
        self.link.send([bytes(self.room[:count])])

    def drained(self) -> None: ...

    def closed(self) -> None:
        self.is_closed = True


class Harness:
    def __init__(self, loop: asyncio.AbstractEventLoop, root: Path) -> None:
        self.loop = loop
        self.files = Certificates(root)
        self.faults: list[BaseException] = []
        self.reloads: list[tuple[str, Exception | None]] = []
        self.served: list[Echo] = []
        self.network = SocketNetwork(
            loop,
            on_fault=lambda _, error: self.faults.append(error),
            on_reload=lambda *told: self.reloads.append(told),
        )
        self.listeners: list[Any] = []
        self.threads = ThreadPoolExecutor(40)

    def listen(self, **options: Any) -> int:
        path = str(self.files.server)
        files = options.pop("files", TlsFiles(path, path, authorities=str(self.files.authority)))
        listener = self.network.listen("127.0.0.1", 0, self.accept, ServerTls(files, **options), "SSL")
        self.listeners.append(listener)
        return listener.port

    def accept(self, link: Link) -> Echo:
        self.served.append(Echo(link))
        return self.served[-1]

    def run(self, job: Callable[[], Any], seconds: float = 60) -> Any:
        """Let the loop run while `job` runs on a thread; its result."""
        future = self.threads.submit(job)
        assert self.run_until(future.done, seconds)
        return future.result()

    def run_until(self, condition: Callable[[], object], seconds: float = 60) -> bool:
        async def wait() -> bool:
            deadline = time.monotonic() + seconds
            while not condition():
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(0.001)
            return True

        return self.loop.run_until_complete(wait())

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.files.authority))
        if own is not None:
            context.load_cert_chain(str(own))
        return context

    def say(self, port: int, data: bytes, context: ssl.SSLContext | None = None) -> tuple[bytes, Any]:
        """What comes back, and the certificate of the server."""
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            (context or self.context()).wrap_socket(sock, server_hostname="127.0.0.1") as safe,
        ):
            safe.settimeout(30)
            safe.sendall(data)
            heard = b""
            while len(heard) < len(data):
                piece = safe.recv(65536)
                if not piece:
                    break
                heard += piece
            return heard, safe.getpeercert(binary_form=True)


@pytest.fixture
def harness(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(loop, tmp_path)
    yield made
    for listener in made.listeners:
        listener.close()
    for peer in made.served:
        peer.link.abort()
    loop.run_until_complete(asyncio.sleep(0.01))
    made.threads.shutdown()


def test_bytes_go_both_ways_and_the_link_says_what_it_is(harness: Harness) -> None:
    port = harness.listen()
    data = os.urandom(3_000_000)
    assert harness.run(lambda: harness.say(port, data))[0] == data
    (peer,) = harness.served
    assert peer.link.is_encrypted
    assert peer.link.listener == "SSL"
    assert peer.secured == [None]
    assert harness.run_until(lambda: peer.is_closed)
    assert not harness.faults


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_both_versions_with_ciphers_that_keep_their_secret(harness: Harness, version: str) -> None:
    port = harness.listen(versions=(version,))

    def ask() -> tuple[str | None, Any]:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            harness.context().wrap_socket(sock, server_hostname="127.0.0.1") as safe,
        ):
            return safe.version(), safe.cipher()

    spoken, cipher = harness.run(ask)
    assert spoken == version
    assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]


def weak(**changes: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    for name, value in changes.items():
        setattr(context, name, value)
    return context


def test_old_versions_and_weak_ciphers_are_refused(harness: Harness) -> None:
    port = harness.listen()
    old = weak(maximum_version=ssl.TLSVersion.TLSv1_1, minimum_version=ssl.TLSVersion.TLSv1)
    without_secrecy = weak(maximum_version=ssl.TLSVersion.TLSv1_2)
    without_secrecy.set_ciphers("AES128-SHA:AES256-GCM-SHA384@SECLEVEL=0")
    for context in (old, without_secrecy):
        with pytest.raises(OSError):
            harness.run(lambda context=context: harness.say(port, b"x", context))
    assert harness.run_until(lambda: len(harness.faults) == 2)
    assert not any(peer.data for peer in harness.served)


def test_a_client_without_tls_reaches_no_handler(harness: Harness) -> None:
    port = harness.listen()

    def knock() -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"\0\0\0\x20" + bytes(32))
            return sock.recv(100)

    answer = harness.run(knock)
    assert answer == b"" or answer[0] == 21, "nothing, or an alert of TLS"
    assert harness.run_until(lambda: harness.served[0].is_closed)
    assert harness.served[0].data == b""
    assert harness.served[0].secured == []


# Certificates of clients.


def test_a_certificate_names_its_client(harness: Harness) -> None:
    port = harness.listen(client_auth=ClientAuth.REQUIRED)
    assert harness.run(lambda: harness.say(port, b"hello", harness.context(harness.files.client)))[0] == b"hello"
    (name,) = harness.served[0].secured
    assert name is not None
    assert "O=trustme" in name


def test_without_a_certificate_nothing_of_the_client_is_heard(harness: Harness) -> None:
    port = harness.listen(client_auth=ClientAuth.REQUIRED)
    stranger = trustme.CA().issue_cert("client@example.org")
    path = harness.files.client.with_name("of-a-stranger.pem")
    path.write_bytes(stranger.private_key_pem.bytes() + b"".join(each.bytes() for each in stranger.cert_chain_pems))
    for own in (None, path):
        with pytest.raises(OSError):
            harness.run(
                lambda own=own: (harness.say(port, b"hello" * 100, harness.context(own)) and None) or _raise()
            )
    assert harness.run_until(lambda: all(peer.is_closed for peer in harness.served))
    assert [(bytes(peer.data), peer.secured) for peer in harness.served] == [(b"", []), (b"", [])]
    assert len(harness.faults) == 2


def _raise() -> None:
    raise OSError("nothing came back")


def test_a_certificate_that_is_only_asked_for_may_be_left_out(harness: Harness) -> None:
    port = harness.listen(client_auth=ClientAuth.REQUESTED)
    for own in (None, harness.files.client):
        assert harness.run(lambda own=own: harness.say(port, b"hello", harness.context(own)))[0] == b"hello"
    assert [len(peer.secured) for peer in harness.served] == [1, 1]
    assert harness.served[0].secured == [None]
    assert harness.served[1].secured != [None]


# As a client.


def test_a_node_believes_only_its_own_authority_and_the_right_host(harness: Harness) -> None:
    right = TlsFiles(authorities=str(harness.files.authority))
    elsewhere = str(harness.files.elsewhere)
    good = harness.listen()
    misnamed = harness.listen(files=TlsFiles(elsewhere, elsewhere))
    made: list[Echo] = []

    def greet(port: int, tls: ClientTls) -> Echo:
        harness.network.connect("127.0.0.1", port, lambda link: made.append(Echo(link)) or made[-1], tls)
        made[-1].link.send([b"from a node"])
        served = len(harness.served)
        harness.run_until(lambda: made[-1].is_closed or (len(harness.served) > served and harness.served[-1].data))
        return made[-1]

    assert not greet(good, ClientTls(right)).is_closed
    assert not greet(misnamed, ClientTls(right, checks_host=False)).is_closed
    assert greet(misnamed, ClientTls(right)).is_closed
    assert greet(good, ClientTls(TlsFiles(authorities=str(harness.files.stranger)))).is_closed
    lines = [str(fault) for fault in harness.faults]
    assert any("not valid for" in each or "mismatch" in each.lower() for each in lines), lines
    assert any("unable to get local issuer" in each or "self" in each for each in lines), lines


# Those who take their time.


def test_stalled_handshakes_block_nothing_and_are_ended(harness: Harness) -> None:
    port = harness.listen(handshake_ms_max=1_500)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    half = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for sock in half:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    began = time.monotonic()
    assert harness.run(lambda: harness.say(port, b"hello"))[0] == b"hello"
    assert time.monotonic() - began < 1.4
    assert harness.run_until(lambda: sum(peer.is_closed for peer in harness.served) >= 100, seconds=20)
    for sock in (*silent, *half):
        sock.close()


def test_the_loop_does_not_wait_for_handshakes(harness: Harness) -> None:
    """Keys are worked out on another thread: what the loop does between two of its turns stays short."""
    port = harness.listen()
    longest = 0.0
    last = time.monotonic()
    is_over = threading.Event()

    async def watch() -> None:
        nonlocal longest, last
        while not is_over.is_set():
            await asyncio.sleep(0)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    def knock() -> int:
        count = 0
        while not is_over.is_set():
            try:
                assert harness.say(port, b"x")[0] == b"x"
            except OSError:
                if is_over.is_set():
                    break
                raise
            count += 1
        return count

    knocking = [harness.threads.submit(knock) for _ in range(4)]
    harness.loop.call_later(1.0, is_over.set)
    harness.loop.run_until_complete(watch())
    assert harness.run_until(lambda: all(each.done() for each in knocking))
    assert sum(each.result() for each in knocking) > 20
    # The threads of this test have the same interpreter: they, not the handshakes, are most of this.
    assert longest < 0.5


# Those who break it.


def test_a_connection_that_is_cut_off_is_an_end_and_no_fault(harness: Harness) -> None:
    """The connection is cut without a TLS close: complete records have arrived, and nothing is made of the
    rest."""
    port = harness.listen()

    def cut_off() -> bytes:
        sock = socket.create_connection(("127.0.0.1", port))
        safe = harness.context().wrap_socket(sock, server_hostname="127.0.0.1", suppress_ragged_eofs=True)
        safe.sendall(b"whole")
        data = safe.recv(100)
        # Half of a record, and the end of the connection below it.
        with socket.socket(fileno=os.dup(safe.fileno())) as below:
            below.sendall(b"\x17\x03\x03\x01\x00half")
            below.shutdown(socket.SHUT_RDWR)
        safe.close()
        return data

    assert harness.run(cut_off) == b"whole"
    assert harness.run_until(lambda: harness.served[0].is_closed, seconds=10)
    assert bytes(harness.served[0].data) == b"whole"
    assert not harness.faults


def test_very_many_small_records_take_turns_with_others(harness: Harness) -> None:
    """Each costs as much as a full one. Some thirty connections that sent nothing else held the loop for 200 ms."""
    port = harness.listen()
    said = bytes(range(256)) * 8

    def say() -> bytes:
        sock = socket.create_connection(("127.0.0.1", port))
        arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        safe = harness.context().wrap_bio(arrived, leaving, server_hostname="127.0.0.1")

        def wait_for(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    result = step()
                except ssl.SSLWantReadError:
                    sock.sendall(leaving.read())
                    arrived.write(sock.recv(65536))
                else:
                    return result

        wait_for(safe.do_handshake)
        for byte in said:
            safe.write(bytes([byte]))
        sock.sendall(leaving.read())
        heard = b""
        while len(heard) < len(said):
            heard += wait_for(lambda: safe.read(65536))
        sock.close()
        return heard

    assert harness.run(say) == said
    (echo,) = harness.served
    assert bytes(echo.data) == said
    assert max(echo.counts) <= RECORDS_PER_WAKE


@pytest.mark.parametrize(
    "record",
    [
        b"\x17\x03\x03\xff\xff" + b"x" * 0xFFFF,  # longer than any may be
        b"\x17\x03\x03\x00\x20" + b"x" * 0x20,  # not what it claims to be
        b"\x99\x03\x03\x00\x05hello",
        b"GET / HTTP/1.1\r\n\r\n" * 100,
    ],
)
def test_what_is_no_record_ends_its_connection_and_no_other(harness: Harness, record: bytes) -> None:
    port = harness.listen()

    def break_it() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            harness.context().wrap_socket(sock, server_hostname="127.0.0.1") as safe,
        ):
            safe.sendall(b"x")
            assert safe.recv(1) == b"x"
            with socket.socket(fileno=os.dup(safe.fileno())) as below:
                below.sendall(record)
                safe.settimeout(20)
                try:
                    return safe.recv(1)
                except OSError:
                    return b""

    assert harness.run(break_it) == b""
    assert harness.run_until(lambda: harness.served[0].is_closed, seconds=10)
    assert len(harness.faults) == 1
    assert isinstance(harness.faults[0], TlsRefused)
    assert harness.run(lambda: harness.say(port, b"hello"))[0] == b"hello"


def test_half_a_handshake_and_then_nonsense_or_nothing(harness: Harness) -> None:
    port = harness.listen()
    for rest in (b"", b"nonsense" * 1_000):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        engine = harness.context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            engine.do_handshake()
        hello = outgoing.read()
        count = len(harness.served)

        def half(hello: bytes = hello, rest: bytes = rest) -> None:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(hello[:40])
                time.sleep(0.05)
                sock.sendall(hello[40:])
                # Its answer comes; it is not read.
                time.sleep(0.1)
                sock.sendall(rest)

        harness.run(half)
        assert harness.run_until(lambda count=count: harness.served[count].is_closed, seconds=10)
        assert not harness.served[count].secured
    assert harness.run(lambda: harness.say(port, b"hello"))[0] == b"hello"


def test_keys_are_not_renegotiated(harness: Harness) -> None:
    """In TLS 1.2 a client could ask for that, and take a millisecond of the loop each time."""
    port = harness.listen()

    def ask_for_it() -> str:
        told = subprocess.run(
            [
                "openssl",
                "s_client",
                "-connect",
                f"127.0.0.1:{port}",
                "-tls1_2",
                "-CAfile",
                str(harness.files.authority),
            ],
            input=b"R\n",
            capture_output=True,
            timeout=30,
            check=False,
        )
        return (told.stdout + told.stderr).decode(errors="replace")

    told = harness.run(ask_for_it)
    assert "RENEGOTIATING" in told
    assert "no renegotiation" in told.lower(), told
    assert len(harness.served[0].secured) == 1


def test_a_file_for_a_peer_that_does_not_read_stays_in_the_file(harness: Harness, tmp_path: Path) -> None:
    """What is encrypted ahead is bounded; and all of it arrives as soon as it is read."""
    port = harness.listen()
    content = os.urandom(1 << 20) * 24
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = RealDisk().open(str(path))
    held: list[tuple[int, int]] = []

    def slow_reader() -> bool:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            harness.context().wrap_socket(sock, server_hostname="127.0.0.1") as safe,
        ):
            safe.sendall(b"x")
            assert safe.recv(1) == b"x"

            def send() -> None:
                link = harness.served[0].link
                file.retain()
                link.send([b"head", FileRange(file, 0, len(content))])

            harness.loop.call_soon_threadsafe(send)
            for _ in range(20):
                time.sleep(0.02)
                link = harness.served[0].link
                held.append((link.unsent_memory_bytes(), link.unsent_bytes()))
            safe.settimeout(30)
            replies = bytearray()
            while len(replies) < len(content) + 4:
                replies += safe.recv(1 << 16)
            return bytes(replies) == b"head" + content

    assert harness.run(slow_reader)
    assert held[-1][1] > 1 << 20, "most of it waits"
    assert max(memory for memory, _ in held) < 512 << 10
    file.close()


# Files.


def test_a_certificate_that_changes_is_read_again(harness: Harness) -> None:
    own = harness.files.client.with_name("own.pem")
    shutil.copy(harness.files.server, own)
    port = harness.listen(files=TlsFiles(str(own), str(own)))
    _, first = harness.run(lambda: harness.say(port, b"x"))
    other = Certificates(own.parent / "next")
    os.replace(shutil.copy(other.server, own.with_suffix(".new")), own)
    time.sleep(1.1)
    context = ssl.create_default_context(cafile=str(other.authority))
    _, second = harness.run(lambda: harness.say(port, b"x", context))
    assert first != second
    assert harness.run_until(lambda: harness.reloads == [(str(own), None)])

    # A half-written certificate does not count; the previous one stays in use.
    own.write_text("nonsense")
    time.sleep(1.1)
    _, third = harness.run(lambda: harness.say(port, b"x", context))
    assert third == second
    assert harness.run_until(lambda: len(harness.reloads) == 2)
    assert isinstance(harness.reloads[1][1], UnusableFiles)

    # Nor does a missing one, however often clients connect: that is reported once.
    own.unlink()
    for _ in range(3):
        time.sleep(1.05)
        assert harness.run(lambda: harness.say(port, b"x", context))[1] == second
    assert harness.run_until(lambda: len(harness.reloads) == 3)
    assert str(own) in str(harness.reloads[2][1])
    shutil.copy(harness.files.server, own)
    time.sleep(1.05)
    assert harness.run(lambda: harness.say(port, b"x"))[1] == first
    assert harness.reloads[-1] == (str(own), None)


def test_files_that_cannot_be_used_are_named_at_once(harness: Harness, tmp_path: Path) -> None:
    server, missing, nonsense = str(harness.files.server), str(tmp_path / "missing"), tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    for files, named in (
        (TlsFiles(missing, missing), missing),
        (TlsFiles(str(nonsense), str(nonsense)), str(nonsense)),
        (TlsFiles(server, str(harness.files.client)), str(harness.files.client)),
        (TlsFiles(server, server, authorities=str(nonsense)), str(nonsense)),
    ):
        with pytest.raises(UnusableFiles) as raised:
            harness.listen(files=files)
        assert named in str(raised.value)


def test_a_key_with_a_password(harness: Harness, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    data = harness.files.server.read_bytes()
    key = serialization.load_pem_private_key(data, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"sesame"),
    )
    path = tmp_path / "locked.pem"
    path.write_bytes(locked)
    files = TlsFiles(str(harness.files.server), str(path), "sesame")
    assert "sesame" not in repr(files)
    port = harness.listen(files=files)
    assert harness.run(lambda: harness.say(port, b"x"))[0] == b"x"
    for wrong in ("", "mustard"):
        with pytest.raises(UnusableFiles) as raised:
            harness.listen(files=TlsFiles(str(harness.files.server), str(path), wrong))
        assert "mustard" not in str(raised.value)
