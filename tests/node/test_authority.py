"""Our own certificate authority: TLS accepts the certificates that it signs, and no others."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millpond.node.authority import Authority, NoAuthority, list_facts, read_facts


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, object]:
    """Both sides over a pair of sockets; what the server saw of the client's certificate."""
    left, right = socket.socketpair()
    seen: dict[str, object] = {}

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as secure:
                seen.update(secure.getpeercert() or {})
                secure.sendall(b"x")
        except (ssl.SSLError, OSError) as fault:
            seen["fault"] = fault
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=host) as secure:
            secure.recv(1)
    finally:
        thread.join(10)
    return seen


def server_context(authority: Authority, path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(authority: Authority, path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(path)
    return context


def test_both_sides_believe_whom_it_vouches_for(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    node = authority.issue("node", "node", ["127.0.0.1", "::1", "localhost"])
    alice = authority.issue("alice", "client")
    for host in ("127.0.0.1", "::1", "localhost"):
        seen = handshake(server_context(authority, node), client_context(authority, alice), host)
        assert seen["subject"] == ((("commonName", "alice"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(server_context(authority, node), client_context(authority, alice), "elsewhere.example")


def test_a_stranger_is_not_believed(tmp_path: Path) -> None:
    ours, theirs = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "theirs")
    node = ours.issue("node", "node", ["localhost"])
    mallory = theirs.issue("alice", "client")
    context = ssl.create_default_context(cafile=str(ours.path))
    context.load_cert_chain(mallory)
    with pytest.raises(OSError):
        handshake(server_context(ours, node), context, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(ours, node), client_context(theirs, mallory), "localhost")


def test_a_client_certificate_cannot_serve(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    alice = authority.issue("alice", "client", ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(server_context(authority, alice), client_context(authority, alice), "localhost")


def test_openssl_finds_nothing_wrong(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    node = authority.issue("node", "node", ["localhost"])
    words = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(authority.path), str(node)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keys_are_for_their_owner(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "security")
    authority.issue("node", "node", ["localhost"])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "security").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "node.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "security").stat().st_mode) == 0o700


def test_it_is_loaded_again_and_never_made_twice(tmp_path: Path) -> None:
    before = Authority.create(tmp_path)
    with pytest.raises(FileExistsError):
        Authority.create(tmp_path)
    authority = Authority.load(tmp_path)
    node = authority.issue("node", "node", ["localhost"])
    with pytest.raises(FileExistsError):
        authority.issue("node", "node", ["localhost"])
    first = read_facts(node).serial
    authority.issue("node", "node", ["localhost"], replace=True)
    assert read_facts(node).serial != first
    handshake(server_context(before, node), client_context(before, node), "localhost")


def test_a_folder_without_an_authority_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoAuthority, match=r"has no authority: .*ca.pem is missing"):
        Authority.load(tmp_path)
    Authority.create(tmp_path / "a")
    Authority.create(tmp_path / "b")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(NoAuthority, match="is not the key of"):
        Authority.load(tmp_path / "a")
    (tmp_path / "b" / "ca.pem").write_text("nothing")
    with pytest.raises(NoAuthority, match="cannot be read"):
        Authority.load(tmp_path / "b")


def test_what_certificates_say(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, days=30)
    authority.issue("node-1", "node", ["127.0.0.1", "pond.example"], days=10)
    authority.issue("alice", "client", days=90)
    (tmp_path / "other.pem").write_text("no certificate")
    ca, node, alice = list_facts(tmp_path)
    now = datetime.now(UTC)
    assert (ca.name, ca.kind, ca.subject) == ("ca", "authority", "CN=Millpond authority")
    assert (node.name, node.kind, node.hosts) == ("node-1", "node", ("127.0.0.1", "pond.example"))
    assert (alice.name, alice.kind, alice.subject, alice.hosts) == ("alice", "client", "CN=alice", ())
    assert node.days_left(now) in (9, 10)
    assert alice.not_after <= ca.not_after, "no certificate outlives the authority"
    assert timedelta(0) < now - node.not_before < timedelta(hours=1), "another machine's clock may be behind"
    assert len(node.fingerprint) == 95


def test_a_node_does_not_load_what_makes_certificates() -> None:
    words = "import sys, millpond.cli.cores, millpond.node.serve; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0
