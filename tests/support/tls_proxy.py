"""A proxy in front of a node without security: TLS, client certificates and logins, before bytes are forwarded.

The node must advertise the proxy's address, or clients would bypass it after the first response.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, decode_response_header, response_header
from support.node import HOST
from support.sasl_server import WrongPassword

LENGTH = struct.Struct(">i")
CHUNK_BYTES = 1 << 16


class Conversation(Protocol):
    is_over: bool

    def answer(self, heard: bytes) -> bytes: ...


def server_context(certificate: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """For a server with this certificate, which requires client certificates if it has an authority for them."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_authority)
    context.load_cert_chain(certificate)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Door:
    """Listens on its own port. `context` makes it use TLS; with `logins`, by mechanism, it authenticates clients."""

    def __init__(
        self,
        port: int,
        target_port: int,
        context: ssl.SSLContext | None = None,
        logins: Mapping[str, Callable[[], Conversation]] | None = None,
    ) -> None:
        self.passed = 0
        self._target_port = target_port
        self._context = context
        self._logins = logins or {}
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._target_port)) as server, contextlib.suppress(OSError):
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            with client:
                if not self._logins or self._lets_in(client, server):
                    self.passed += 1
                    _pass_on(client, server)

    def _lets_in(self, client: socket.socket, server: socket.socket) -> bool:
        """Answer in the node's place until the login is over; returns whether it succeeded."""
        conversation: Conversation | None = None
        while conversation is None or not conversation.is_over:
            frame = _frame(client)
            header = decode_request_header(frame)
            key, version = header.api_key, header.api_version
            if key == m.ApiVersionsRequest.API_KEY:
                reply = self._versions(server, frame, version)
            elif key == m.SaslHandshakeRequest.API_KEY:
                asked, _ = m.SaslHandshakeRequest.decode(frame, version, header.body_position)
                reply = self._handshake(asked.mechanism)
                conversation = self._logins[asked.mechanism]() if not reply.error_code else None
            else:
                assert key == m.SaslAuthenticateRequest.API_KEY, f"API {key} before the login"
                assert conversation is not None, "no handshake"
                said, _ = m.SaslAuthenticateRequest.decode(frame, version, header.body_position)
                reply = _authenticate(conversation, bytes(said.auth_bytes))
            _send(client, response_header(key, version, header.correlation_id) + reply.encode(version))
            if key == m.SaslAuthenticateRequest.API_KEY and reply.error_code:
                return False
        return True

    def _versions(self, server: socket.socket, frame: bytes, version: int) -> m.ApiVersionsResponse:
        """What the node offers, and the two APIs of a login."""
        _send(server, frame)
        reply = _frame(server)
        _, position = decode_response_header(reply, m.ApiVersionsRequest.API_KEY, version)
        offered, _ = m.ApiVersionsResponse.decode(reply, version, position)
        for request in (m.SaslHandshakeRequest, m.SaslAuthenticateRequest):
            lowest, highest = request.VERSIONS
            offered.api_keys.append(
                m.ApiVersionsResponse.ApiVersion(api_key=request.API_KEY, min_version=lowest, max_version=highest)
            )
        return offered

    def _handshake(self, mechanism: str) -> m.SaslHandshakeResponse:
        known = mechanism in self._logins
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return m.SaslHandshakeResponse(error_code=code, mechanisms=list(self._logins))


def _authenticate(conversation: Conversation, said: bytes) -> m.SaslAuthenticateResponse:
    try:
        return m.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=conversation.answer(said))
    except WrongPassword as reason:
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        return m.SaslAuthenticateResponse(error_code=code, error_message=str(reason), auth_bytes=b"")


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """One thread forwards both directions: a TLS connection does not support two."""
    other = {client: server, server: client}
    while True:
        readable, _, _ = select.select([client, server], [], [])
        for source in readable:
            data = source.recv(CHUNK_BYTES)
            if isinstance(source, ssl.SSLSocket):
                # Data that is already decrypted does not make the socket readable again.
                while source.pending():
                    data += source.recv(CHUNK_BYTES)
            if not data:
                return
            other[source].sendall(data)


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(LENGTH.pack(len(frame)) + frame)


def _frame(source: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    return _exactly(source, length)


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            raise ConnectionError("the other side has gone")
        parts += part
    return bytes(parts)
