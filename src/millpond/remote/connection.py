"""One connection to one broker: TCP or TLS, authenticated if required, each request in a version both sides support.

Responses arrive in request order, so several may be in flight: call `send` several times, then `receive` as often.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from typing import Final, TypeVar

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.base.resource import Closable
from millpond.remote.errors import LoginFailed, Unreachable, Unsupported
from millpond.remote.sasl import Login
from millpond.remote.security import PLAIN_TEXT, Security
from millpond.wire import messages as m
from millpond.wire.header import NAMES, decode_response_header, encode_request_header

ANSWER_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 30
RECEIVE_BUFFER_BYTES: Final = 1 << 20

SESSION_SHARE: Final = 0.85
"""Re-authenticate after this share of the session lifetime that the broker grants."""

_API_VERSIONS_KEY: Final = 18
_PREFIX: Final = struct.Struct(">i")

R = TypeVar("R", bound=m.Message)


class BrokerConnection(Closable):
    """A connection. Raises Unreachable when it breaks; after that it is closed and unusable."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        security: Security = PLAIN_TEXT,
        client_id: str = "millpond",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.host = host
        self.port = port
        self.is_closed = False
        self._client_id = client_id
        self._answer_seconds = answer_seconds
        self._correlation = 0
        self._renew_at: float | None = None
        self._waiting: deque[tuple[int, int, int, type[m.Message]]] = deque()
        self._socket = self._connect(security)
        try:
            self._versions = self._ask_versions()
            self._login = security.login
            if self._login is not None:
                self._log_in(self._login)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_stale(self) -> bool:
        """Whether its login is about to expire (KIP-368) and no response is outstanding: a new connection is
        better."""
        return self._renew_at is not None and time.monotonic() > self._renew_at and not self._waiting

    def log_in_again(self) -> None:
        """Before the login expires, on the same connection (KIP-368). Without a login nothing happens."""
        if self._login is not None:
            self._log_in(self._login)

    @property
    def waiting_count(self) -> int:
        """The number of requests without a response."""
        return len(self._waiting)

    def close(self) -> None:
        self.is_closed = True
        self._waiting.clear()
        self._socket.close()

    def version(self, request: type[m.Message], newest: int | None = None) -> int:
        """The version that this request would use, at most `newest`."""
        key = request.API_KEY
        assert key is not None
        theirs = self._versions.get(key, (0, -1))
        ours = request.VERSIONS
        chosen = min(theirs[1], ours[1] if newest is None else newest)
        if chosen < max(theirs[0], ours[0]):
            raise Unsupported(f"the broker at {self.address} does not offer {NAMES[key]} in a version that we speak")
        return chosen

    def ask(self, request: m.Message, answer: type[R], *, newest: int | None = None) -> R:
        """Send the request and wait for its response."""
        assert not self._waiting, "answers are outstanding"
        self.send(request, answer, newest=newest)
        return self.receive(answer)

    def ask_as_node(self, request: m.Message, answer: type[R], version: int) -> R:
        """The same for inter-broker requests, whose versions clients do not see."""
        assert not self._waiting, "answers are outstanding"
        key = request.API_KEY
        assert key is not None
        self._send(key, version, request, answer)
        return self.receive(answer)

    def send(self, request: m.Message, answer: type[m.Message], *, newest: int | None = None) -> None:
        """Send the request; its response is received later."""
        key = request.API_KEY
        assert key is not None
        self._send(key, self.version(type(request), newest), request, answer)

    def receive(self, answer: type[R], *, seconds: float | None = None) -> R:
        """The response to the oldest unanswered request. `seconds` is for a broker that was asked to wait."""
        correlation, key, version, expected = self._waiting.popleft()
        assert expected is answer, (expected, answer)
        try:
            self._socket.settimeout(self._answer_seconds if seconds is None else self._answer_seconds + seconds)
            (length,) = _PREFIX.unpack(self._read(_PREFIX.size))
            if not 0 <= length <= ANSWER_BYTES_MAX:
                raise MalformedMessage(f"an answer of {length} bytes; at most {ANSWER_BYTES_MAX} are accepted")
            frame = memoryview(self._read(length))
            answered, position = decode_response_header(frame, key, version)
            if answered != correlation:
                raise MalformedMessage(f"an answer to question {answered} instead of {correlation}")
            decoded, _ = answer.decode(frame, version, position)
        except TimeoutError as late:
            self.close()
            raise Unreachable(
                f"the broker at {self.address} has not answered {NAMES[key]} in time", retriable=True
            ) from late
        except OSError as fault:
            self.close()
            raise Unreachable(f"the connection to {self.address} broke: {fault}", retriable=True) from fault
        except BaseException:
            # The rest of the response would be taken for the next one.
            self.close()
            raise
        return decoded

    def _connect(self, security: Security) -> socket.socket:
        try:
            plain = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        except OSError as fault:
            raise Unreachable(
                f"no broker answers at {self.address} ({fault}): check the address and that it is up", retriable=True
            ) from fault
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if security.context is None:
            return plain
        try:
            return security.context.wrap_socket(plain, server_hostname=self.host)
        except ssl.SSLError as fault:
            plain.close()
            raise LoginFailed(
                f"no TLS with {self.address}: {fault.reason or fault}; check security.protocol, ssl.ca.location and "
                "that the certificate names this host"
            ) from fault
        except OSError as fault:
            plain.close()
            raise Unreachable(f"{self.address} closed the connection during the TLS handshake: {fault}") from fault

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        try:
            self._send(_API_VERSIONS_KEY, 0, m.ApiVersionsRequest(), m.ApiVersionsResponse)
            response = self.receive(m.ApiVersionsResponse)
        except Unreachable as fault:
            if isinstance(fault.__cause__, TimeoutError):
                raise
            # A listener that expects TLS, or another certificate, closes without a readable error.
            raise Unreachable(
                f"{self.address} closed the connection before its first answer: if it is up, check security.protocol "
                "and, with TLS, that the broker accepts our certificate (ssl.certificate.location, ssl.keystore.*)",
                retriable=True,
            ) from fault
        return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def _log_in(self, login: Login) -> None:
        hands = self.ask(m.SaslHandshakeRequest(mechanism=login.mechanism), m.SaslHandshakeResponse)
        if hands.error_code:
            offered = ", ".join(hands.mechanisms) or "none"
            raise LoginFailed(f"{self.address} does not take sasl.mechanism={login.mechanism}; it offers: {offered}")
        conversation = login.conversation()
        said: bytes | None = conversation.first()
        while said is not None:
            reply = self.ask(m.SaslAuthenticateRequest(auth_bytes=said), m.SaslAuthenticateResponse)
            if reply.error_code:
                name = ErrorCode.SASL_AUTHENTICATION_FAILED.name
                raise LoginFailed(
                    f"{self.address} refuses the user {login.username!r}: {reply.error_message or name}; check the "
                    "user name and the password"
                )
            if reply.session_lifetime_ms:
                self._renew_at = time.monotonic() + reply.session_lifetime_ms / 1000 * SESSION_SHARE
            said = conversation.next(bytes(reply.auth_bytes))

    def _send(self, key: int, version: int, request: m.Message, answer: type[m.Message]) -> None:
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        head = encode_request_header(key, version, self._correlation, self._client_id)
        body = request.encode(version)
        self._waiting.append((self._correlation, key, version, answer))
        try:
            self._socket.settimeout(self._answer_seconds)
            self._socket.sendall(_PREFIX.pack(len(head) + len(body)) + head + body)
        except OSError as fault:
            self.close()
            raise Unreachable(f"the connection to {self.address} broke: {fault}", retriable=True) from fault

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        at = 0
        while at < count:
            received = self._socket.recv_into(view[at:])
            if not received:
                raise ConnectionError("the broker closed it")
            at += received
        return data
