"""OAUTHBEARER clients: sources of tokens, and errors."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from millpond.remote.client_file import for_librdkafka
from millpond.remote.errors import ConfigError, LoginFailed
from millpond.remote.sasl import Login
from millpond.remote.security import Security
from millpond.remote.signed_tokens import URL, TokenSource


def made(expires: float) -> str:
    """A token; its signature is not checked here."""
    parts = ({"alg": "none"}, {"exp": expires}, {})
    return ".".join(urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)


def login_of(**settings: str) -> Login:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **settings}
    login = Security.from_settings(given).login
    assert login is not None
    return login


class TokenServer:
    """A token endpoint."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        self.answer: bytes = b"{}"
        self.code = 200
        token_server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                who = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                token_server.requests.append((who, parse_qs(body)))
                self.send_response(token_server.code)
                self.end_headers()
                self.wfile.write(token_server.answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def token_server() -> Iterator[TokenServer]:
    token_server = TokenServer()
    yield token_server
    token_server.close()


def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("one\n")
    login = login_of(**{URL: path.as_uri()})
    assert login.conversation().first() == b"n,,\x01auth=Bearer one\x01\x01"
    path.write_text("two")
    conversation = login.conversation()
    assert conversation.first() == b"n,,\x01auth=Bearer two\x01\x01"
    assert conversation.next(b"") is None
    assert conversation.next(b'{"status":"invalid_token"}') == b"\x01", "what is wrong is acknowledged"
    path.unlink()
    with pytest.raises(LoginFailed, match="cannot be read: No such file"):
        login.conversation()


def test_a_token_is_requested_once_while_it_is_valid(token_server: TokenServer) -> None:
    token_server.answer = json.dumps({"access_token": "abc", "expires_in": 3600}).encode()
    jaas = 'some.OAuthBearerLoginModule required clientId="me" clientSecret="s:";'
    login = login_of(**{URL: token_server.url, "sasl.jaas.config": jaas, "sasl.oauthbearer.scope": "mill"})
    assert [login.conversation().first() for _ in range(3)] == [b"n,,\x01auth=Bearer abc\x01\x01"] * 3
    assert token_server.requests == [("me:s%3A", {"grant_type": ["client_credentials"], "scope": ["mill"]})]
    assert "s:" not in repr(login), "secrets are not shown"
    token_server.answer = json.dumps({"access_token": "def", "expires_in": 0}).encode()
    other = TokenSource(token_server.url, "me", "s")
    assert (other.token(), other.token()) == ("def", "def")
    assert len(token_server.requests) == 3


@pytest.mark.parametrize(
    ("code", "answer", "message"),
    [
        (401, b"{}", "401"),
        (200, b"no json", "invalid response"),
        (200, b"{}", "invalid response"),
        (200, b"[]", "invalid response"),
    ],
)
def test_a_failing_token_endpoint_is_named(token_server: TokenServer, code: int, answer: bytes, message: str) -> None:
    token_server.code, token_server.answer = code, answer
    with pytest.raises(LoginFailed, match=message) as caught:
        TokenSource(token_server.url, "me", "secret").token()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({URL: "http://elsewhere.example/token"}, "a file or https URL"),
        ({URL: "https://login.example/token"}, "needs a client's id and secret"),
    ],
)
def test_incomplete_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        login_of(**settings)


def test_librdkafka_gets_tokens_by_a_callback(tmp_path: Path) -> None:
    path = tmp_path / "token"
    at = time.time() + 100
    path.write_text(made(at))
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", URL: path.as_uri(), "acks": "all"}
    translated = for_librdkafka(settings)
    assert translated.pop("oauth_cb")("") == (made(at), at)
    assert translated["sasl.mechanisms"] == "OAUTHBEARER"
    assert translated["acks"] == "all"
    assert URL not in translated
    path.write_text("opaque")
    assert 0 < TokenSource(path.as_uri()).until() - time.time() <= 60
