"""A link that authenticates first: its owner sees none of it, and sends nothing to a peer without the password."""

from __future__ import annotations

from base64 import b64encode
from struct import Struct
from typing import Any

import pytest
from tests.broker.conftest import FakeLink

from millpond.broker.peers.node_login import LoginNotTaken, NodeLogin
from millpond.broker.security.directory import NodeUser, Users
from millpond.broker.security.mechanisms import LoginRefused, Said, Scram
from millpond.broker.security.token_proofs import TokenProofs
from millpond.metadata.image import Image
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, response_header

LENGTH = Struct(">i")
USER = NodeUser("node", "known to all")


class Owner:
    """The owner of a link."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.events: list[str] = []
        self._room = memoryview(bytearray(100))

    def buffer(self) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        self.heard += self._room[:count]

    def drained(self) -> None:
        self.events.append("drained")

    def closed(self) -> None:
        self.events.append("closed")


class LoginPair:
    """A link with an owner on one side, and a broker that knows a password on the other."""

    def __init__(self, password: str = "known to all") -> None:
        self.below = FakeLink()
        self.owner = Owner()
        made: list[Any] = []
        login = NodeLogin(USER, "millpond-node-2", lambda: "nonce")
        self.below.handler = login.wrap(lambda _: self.owner, made, self.below)  # type: ignore[assignment, arg-type]
        self.link = made[0]
        users = Users(Image(), TokenProofs(lambda: None), lambda: 0, b"own", NodeUser("node", password))
        self.server = Scram(USER.mechanism, users, "server")

    def answer(self) -> str:
        """Let the broker answer the last request, and return that request."""
        (frame,) = self.below.frames()
        header = decode_request_header(frame)
        assert header.client_id == "millpond-node-2"
        request = m.request_class(header.api_key).decode(frame, header.api_version, header.body_position)[0]
        response: Any
        if isinstance(request, m.SaslHandshakeRequest):
            response = m.SaslHandshakeResponse(error_code=0, mechanisms=["SCRAM-SHA-512"])
        else:
            response = self._judge(bytes(request.auth_bytes))
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        body = head + response.encode(header.api_version)
        self.below.say(LENGTH.pack(len(body)) + body)
        return type(request).__name__

    def _judge(self, shown: bytes) -> m.SaslAuthenticateResponse:
        try:
            said = self.server.answer(shown)
        except LoginRefused:
            return m.SaslAuthenticateResponse(error_code=58, error_message="no")
        assert isinstance(said, Said)
        return m.SaslAuthenticateResponse(error_code=0, auth_bytes=said.text)


def test_what_is_sent_waits_for_the_login_and_then_goes_by_itself() -> None:
    pair = LoginPair()
    pair.link.send([b"early ", b"words"])
    assert pair.link.unsent_bytes() == 11
    assert [pair.answer() for _ in range(3)] == [
        "SaslHandshakeRequest",
        "SaslAuthenticateRequest",
        "SaslAuthenticateRequest",
    ]
    assert pair.below.received == b"early words"
    pair.below.received.clear()
    pair.link.send([b"later"])
    assert pair.below.received == b"later"
    pair.below.say(b"answer")
    assert pair.owner.heard == b"answer"
    pair.below.end()
    assert pair.owner.events == ["closed"]


def test_a_broker_with_another_password_is_not_believed() -> None:
    pair = LoginPair(password="another")
    pair.link.send([b"secret words"])
    assert [pair.answer() for _ in range(2)] == ["SaslHandshakeRequest", "SaslAuthenticateRequest"]
    with pytest.raises(LoginNotTaken, match="not let in"):
        pair.answer()
    assert pair.below.frames() == [], "what its owner has sent does not leave"
    pair.below.end()
    assert pair.owner.events == ["closed"]


@pytest.mark.parametrize("asked", [b"r=nonce-s,s=c2FsdA==,i=8192", b"r=nonce-s,s=%s,i=1"])
def test_no_proof_is_sent_for_another_salt_or_fewer_iterations(asked: bytes) -> None:
    pair = LoginPair()
    pair.answer()
    (frame,) = pair.below.frames()
    salt, _, _ = USER.stretched(USER.mechanism)
    challenge = asked.replace(b"%s", b64encode(salt))
    response = m.SaslAuthenticateResponse(error_code=0, auth_bytes=challenge)
    body = response_header(36, 2, decode_request_header(frame).correlation_id) + response.encode(2)
    with pytest.raises(LoginNotTaken, match="another salt, or other rounds"):
        pair.below.say(LENGTH.pack(len(body)) + body)
    assert pair.below.frames() == [], "no proof has left that could be tried out"


def test_a_refusal_names_the_user_and_not_the_password() -> None:
    pair = LoginPair()
    pair.answer()
    (frame,) = pair.below.frames()
    header = decode_request_header(frame)
    refusal = m.SaslAuthenticateResponse(error_code=58, error_message="not today")
    body = response_header(36, 2, header.correlation_id) + refusal.encode(2)
    with pytest.raises(LoginNotTaken, match="node user node is not let in: not today") as refused:
        pair.below.say(LENGTH.pack(len(body)) + body)
    assert "known to all" not in str(refused.value)
