"""What a node fetches, and what it does not."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from millpond.node.web import BYTES_MAX, Web, fetch


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        body = b"x" * (BYTES_MAX + 1) if self.path == "/large" else b"keys"
        self.send_response(200 if self.path != "/gone" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_and_a_server_of_this_machine(tmp_path: Path, server: str) -> None:
    path = tmp_path / "a file.json"
    path.write_bytes(b"{}")
    assert fetch(path.as_uri()) == b"{}"
    assert fetch(f"{server}/keys") == b"keys"


@pytest.mark.parametrize("path", ["/gone", "/moved"])
def test_what_is_not_there_or_has_moved_is_not_had(server: str, path: str) -> None:
    with pytest.raises(OSError, match="HTTP Error"):
        fetch(server + path)


def test_what_is_too_large_is_not_read(tmp_path: Path, server: str) -> None:
    with pytest.raises(ValueError, match="more than"):
        fetch(f"{server}/large")
    (tmp_path / "large").write_bytes(b"x" * (BYTES_MAX + 1))
    with pytest.raises(ValueError, match="more than"):
        fetch((tmp_path / "large").as_uri())


@pytest.mark.parametrize(
    "url",
    ["http://example.org/keys", "ftp://127.0.0.1/keys", "data:,keys", "keys", "", "http://127.0.0.1.evil.example/"],
)
def test_nothing_else_is_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="only https and file"):
        fetch(url)


def test_what_is_no_http_is_an_error_like_any_other() -> None:
    """Else a bug, which ends the node."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_say_nonsense, args=(server,))
        thread.start()
        with pytest.raises(OSError, match="invalid response"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/keys")
        thread.join()


def _say_nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"220 mail.example ESMTP\r\n\r\n")


def test_it_comes_later_on_the_loop(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"{}")
    loop = asyncio.new_event_loop()
    replies: list[object] = []

    def hear(value: object) -> None:
        replies.append(value)
        if len(replies) == 2:
            loop.stop()

    web = Web(loop)
    for name in ("keys", "none"):
        web.fetch((tmp_path / name).as_uri()).then(hear, lambda failure: hear(type(failure)))
    loop.run_forever()
    loop.close()
    assert set(replies) == {b"{}", FileNotFoundError}


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fetch((tmp_path / "none").as_uri())
