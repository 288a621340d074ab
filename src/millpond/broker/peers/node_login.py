"""A node's login to another node: a link that logs in before its owner's first request, invisibly to the owner.

Every node knows the node user's salt and iterations, so the salted password is cached; a peer that sends another salt
or other iterations gets no proof. Finally the peer has to prove that it knows the password too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, MalformedMessage, RemoteError
from millpond.base.scram import ScramClient, ScramFault
from millpond.wire import messages as m
from millpond.wire.frames import FrameReader, SpareRoom
from millpond.wire.header import decode_response_header, encode_request_header

if TYPE_CHECKING:
    from millpond.base.ports import Link, LinkHandler, ReplyPart
    from millpond.broker.security.directory import NodeUser

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
FRAME_BYTES_MAX: Final = 64 << 10
SCRATCH_BYTES: Final = 4 << 10
_LENGTH: Final = Struct(">i")


class LoginNotTaken(RemoteError):
    """The other node refused the login, or does not know the password itself."""


class NodeLogin:
    """Makes links log in. `nonce` returns an unguessable random string."""

    def __init__(self, user: NodeUser, client_id: str, nonce: Callable[[], str]) -> None:
        self.user = user
        self.client_id = client_id
        self.nonce = nonce

    def wrap(self, make_handler: Callable[[Link], LinkHandler], made: list[Link], link: Link) -> LinkHandler:
        """For the network's `connect`: the owner's handler gets a link that waits for the login."""
        waiting = LoginLink(link, self)
        made.append(waiting)
        waiting.begin(make_handler(waiting))
        return waiting

    def conversation(self) -> ScramClient:
        user = self.user
        return ScramClient(
            user.mechanism.label, user.name, user.password, self.nonce(), stretch=partial(_known, user)
        )


def _known(user: NodeUser, salt: bytes, iterations: int) -> bytes:
    known_salt, known_iterations, stretched = user.stretched(user.mechanism)
    if (salt, iterations) != (known_salt, known_iterations):
        raise ScramFault("the other node asks for another salt, or other rounds of hashing, than nodes have")
    return stretched


class LoginLink:
    """The owner's link, and the handler of the link below. Data sent during the login is buffered."""

    def __init__(self, link: Link, login: NodeLogin) -> None:
        self.peer = link.peer
        self.local_host = link.local_host
        self.listener = link.listener
        self.is_encrypted = link.is_encrypted
        self.certificate_name = link.certificate_name
        self.on_secured: Callable[[], None] | None = None
        self._link = link
        self._login = login
        self._handler: LinkHandler | None = None
        self._is_in = False
        self._waiting: list[ReplyPart] = []
        self._conversation = login.conversation()
        self._reader = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), FRAME_BYTES_MAX, SpareRoom(0))
        self._number = 0
        self._asked: tuple[int, int] = (0, 0)

    def begin(self, handler: LinkHandler) -> None:
        self._handler = handler
        self._ask(m.SaslHandshakeRequest(mechanism=self._login.user.mechanism.label), HANDSHAKE_VERSION)

    # Called by the owner.

    def send(self, parts: Sequence[ReplyPart]) -> None:
        if self._is_in:
            self._link.send(parts)
        else:
            self._waiting += parts

    def unsent_bytes(self) -> int:
        return self._link.unsent_bytes() + sum(map(len, self._waiting))

    def unsent_memory_bytes(self) -> int:
        return self._link.unsent_memory_bytes() + sum(map(len, self._waiting))

    def pause_reading(self) -> None:
        self._link.pause_reading()

    def resume_reading(self) -> None:
        self._link.resume_reading()

    def close(self) -> None:
        self._link.close()

    def abort(self) -> None:
        self._link.abort()

    # Called by the link below.

    def buffer(self) -> memoryview:
        assert self._handler is not None
        return self._handler.buffer() if self._is_in else self._reader.buffer()

    def received(self, count: int) -> None:
        assert self._handler is not None
        if self._is_in:
            self._handler.received(count)
            return
        for frame in self._reader.advance(count):
            if self._is_in:
                raise MalformedMessage("more than the answer to a login")
            self._take(frame)

    def drained(self) -> None:
        assert self._handler is not None
        if self._is_in:
            self._handler.drained()

    def closed(self) -> None:
        assert self._handler is not None
        self._handler.closed()

    # The login.

    def _ask(self, request: m.Message, version: int) -> None:
        assert request.API_KEY is not None
        self._number += 1
        self._asked = request.API_KEY, version
        head = encode_request_header(request.API_KEY, version, self._number, self._login.client_id)
        frame = head + request.encode(version)
        self._link.send([_LENGTH.pack(len(frame)) + frame])

    def _take(self, frame: memoryview) -> None:
        key, version = self._asked
        number, position = decode_response_header(frame, key, version)
        response: Any = m.response_class(key).decode(frame, version, position)[0]
        if number != self._number:
            raise MalformedMessage(f"response {number} where {self._number} was due")
        if response.error_code:
            why = getattr(response, "error_message", None) or _name_of(response.error_code)
            raise LoginNotTaken(f"node user {self._login.user.name} is not let in: {why}")
        try:
            if isinstance(response, m.SaslHandshakeResponse):
                said: bytes | None = self._conversation.first()
            else:
                said = self._conversation.next(bytes(response.auth_bytes))
        except ScramFault as fault:
            raise LoginNotTaken(str(fault)) from None
        if said is not None:
            self._ask(m.SaslAuthenticateRequest(auth_bytes=said), AUTHENTICATE_VERSION)
            return
        self._is_in = True
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._link.send(waiting)


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
