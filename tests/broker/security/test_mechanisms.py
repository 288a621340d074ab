"""SASL exchanges as transcripts: what the client sends, what the broker answers, who is authenticated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.base.later import Later, done, failed
from millpond.base.principal import Principal
from millpond.base.scram import ScramClient, ScramFault, from_base64, salted
from millpond.broker.security.directory import NodeUser, Users
from millpond.broker.security.mechanisms import (
    Answer,
    AnswerLater,
    Authenticated,
    Conversation,
    LoginRefused,
    OauthBearer,
    Plain,
    Said,
    Scram,
    TokenFacts,
    Work,
)
from millpond.broker.security.token_proofs import TokenProofs
from millpond.metadata.image import Image
from millpond.metadata.records import DelegationTokenRecord
from millpond.metadata.scram import Mechanism, Upsertion, decide_alter_credentials

ALICE = Principal("User", "alice")
NONCE = "server-nonce"
SALT = b"pepper" * 5


@cache
def image_with(**users: str) -> Image:
    """Shared between tests, so do not modify it: hashing is slow."""
    image = Image()
    upsertions = [
        Upsertion(user, mechanism, 4096, SALT, salted(Mechanism(mechanism).hash_name, password.encode(), SALT, 4096))
        for user, password in users.items()
        for mechanism in (2,)
    ] + [
        Upsertion(f"{user}-256", 1, 4096, SALT, salted("sha256", password.encode(), SALT, 4096))
        for user, password in users.items()
    ]
    image.replay_all(decide_alter_credentials(image, [], upsertions, b"shared").records)
    return image


def users(image: Image, now_ms: int = 0, node_user: NodeUser | None = None) -> Users:
    return Users(image, TokenProofs(lambda: image.scram.secret), lambda: now_ms, b"own", node_user)


def settle(answer: AnswerLater) -> Said:
    if isinstance(answer, Later):
        come: list[Answer] = []
        answer.then(come.append)
        (answer,) = come
    return answer.then(answer.job()) if isinstance(answer, Work) else answer


def scram(
    directory: Users, user: str, password: str, mechanism: Mechanism, *, is_token: bool = False
) -> Authenticated:
    server = Scram(mechanism, directory, NONCE)
    client = ScramClient(mechanism.label, user, password, "client-nonce", is_token=is_token)
    challenge = settle(server.answer(client.first()))
    proof = client.next(challenge.text)
    assert proof is not None
    verdict = settle(server.answer(proof))
    assert client.next(verdict.text) is None
    assert client.is_over, "the broker has shown that it knows the password, too"
    assert verdict.authenticated is not None
    return verdict.authenticated


def plain(directory: Users, text: bytes) -> Authenticated:
    said = settle(Plain(directory).answer(text))
    assert said.authenticated is not None
    return said.authenticated


@pytest.mark.parametrize(("user", "mechanism"), [("alice", Mechanism.SCRAM_SHA_512), ("alice-256", Mechanism(1))])
def test_who_knows_the_password_is_let_in(user: str, mechanism: Mechanism) -> None:
    directory = users(image_with(alice="pw"))
    assert scram(directory, user, "pw", mechanism) == Authenticated(Principal("User", user), shown=mechanism.label)
    assert plain(directory, f"\0{user}\0pw".encode()).principal.name == user


def test_a_name_may_have_any_letters() -> None:
    name = "a=b,c ü"
    image = Image()
    upsertion = Upsertion(name, 2, 4096, SALT, salted("sha512", "pässwörd".encode(), SALT, 4096))
    image.replay_all(decide_alter_credentials(image, [], [upsertion], b"shared").records)
    assert scram(users(image), name, "pässwörd", Mechanism.SCRAM_SHA_512).principal.name == name


def test_a_wrong_password_and_a_user_who_is_not_there_go_the_same_way() -> None:
    directory = users(image_with(alice="pw", bob="other"))
    challenges = []
    for user in ("alice", "nobody-here"):
        server = Scram(Mechanism.SCRAM_SHA_512, directory, NONCE)
        client = ScramClient("SCRAM-SHA-512", user, "wrong", "client-nonce")
        challenge = settle(server.answer(client.first()))
        challenges.append(dict(part.split("=", 1) for part in challenge.text.decode().split(",")))
        proof = client.next(challenge.text)
        assert proof is not None
        with pytest.raises(LoginRefused, match="no such user, or the wrong password") as refused:
            server.answer(proof)
        assert refused.value.claimed == user
    alice, nobody = challenges
    assert alice["i"] == nobody["i"]
    assert len(from_base64(alice["s"])) == len(from_base64(nobody["s"]))
    assert alice["s"] != nobody["s"]


def test_who_is_not_there_gets_the_same_salt_every_time_and_on_every_node() -> None:
    image = image_with(alice="pw")
    one = users(image).credential("ghost", Mechanism(2))
    other = Users(image.copy(), TokenProofs(lambda: None), lambda: 5, b"another node").credential(
        "ghost", Mechanism(2)
    )
    assert one[0].salt == other[0].salt
    assert not one[1]
    assert users(image).credential("ghost2", Mechanism(2))[0].salt != one[0].salt


def test_plain_takes_the_same_work_for_unknown_users(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[tuple[str, int, int]] = []

    def count(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append((hash_name, len(salt), iterations))
        return b"0" * 64

    monkeypatch.setattr("millpond.broker.security.mechanisms.salted", count)
    directory = users(image_with(alice="pw", bob="pw2"))
    for user in ("alice", "ghost"):
        with pytest.raises(LoginRefused, match="no such user, or the wrong password"):
            plain(directory, f"\0{user}\0wrong".encode())
    assert hashed[0] == hashed[1]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0\0pw",
        b"\0alice\0",
        b"\0alice\0pw\0more",
        b"bob\0alice\0pw",
        b"\0\xff\0pw",
        b"\0" + b"a" * 300 + b"\0pw",
        b"\0alice\0" + b"p" * 2000,
    ],
)
def test_what_is_no_message_of_plain_is_refused_before_any_work(text: bytes) -> None:
    with pytest.raises(LoginRefused):
        Plain(users(image_with(alice="pw"))).answer(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"n,,",
        b"n,,r=abc",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=a=b,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=" + b"x" * 300,
        b"n,,n=" + b"x" * 300 + b",r=abc",
        b"n,,m=must,n=alice,r=abc",
        b"\xff\xfe",
    ],
)
def test_what_is_no_first_message_of_scram_is_refused(text: bytes) -> None:
    with pytest.raises(LoginRefused):
        Scram(Mechanism.SCRAM_SHA_512, users(image_with(alice="pw")), NONCE).answer(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: proof.replace(b"c=biws", b"c=eSws"),
        lambda proof: proof.replace(b"server-nonce", b"other-nonce"),
        lambda proof: proof[:-4],
        lambda proof: proof.replace(b",p=", b",q="),
        lambda _: b"",
        lambda proof: proof + b",x=1",
    ],
)
def test_a_last_message_that_was_changed_is_refused(change: Callable[[bytes], bytes]) -> None:
    server = Scram(Mechanism.SCRAM_SHA_512, users(image_with(alice="pw")), NONCE)
    client = ScramClient("SCRAM-SHA-512", "alice", "pw", "client-nonce")
    proof = client.next(settle(server.answer(client.first())).text)
    assert proof is not None
    with pytest.raises(LoginRefused):
        server.answer(change(proof))
    with pytest.raises(LoginRefused, match="over"):
        server.answer(proof)


@given(st.lists(st.binary(max_size=60) | st.text(alphabet="n,=rcpa\0\x01authBearer", max_size=40).map(str.encode)))
@settings(max_examples=200)
def test_random_bytes_do_not_log_in(messages: list[bytes]) -> None:
    directory = users(image_with(alice="pw"))
    makers: list[Callable[[], Conversation]] = [
        lambda: Scram(Mechanism.SCRAM_SHA_256, directory, NONCE),
        lambda: Plain(directory),
        lambda: OauthBearer(StubVerifier()),
    ]
    for make in makers:
        conversation = make()
        try:
            for message in messages:
                assert settle(conversation.answer(message)).authenticated is None
        except LoginRefused:
            pass


def test_a_client_does_not_believe_a_broker_that_does_not_know_the_password() -> None:
    server = Scram(Mechanism.SCRAM_SHA_512, users(image_with(alice="pw")), NONCE)
    client = ScramClient("SCRAM-SHA-512", "alice", "pw", "client-nonce")
    client.next(settle(server.answer(client.first())).text)
    with pytest.raises(ScramFault, match="does not know the password itself"):
        client.next(b"v=AAAA")


# Delegation tokens.


def token_image(until_ms: int) -> tuple[Image, str]:
    image = image_with(alice="pw").copy()
    image.replay(DelegationTokenRecord("User:alice", "User:alice", (), 0, until_ms, until_ms, "t1"))
    password = TokenProofs(lambda: image.scram.secret).password_of("t1")
    assert password is not None
    return image, password.decode()


def test_a_token_lets_in_as_its_owner_until_it_ends() -> None:
    image, password = token_image(until_ms=100)
    for mechanism in Mechanism:
        result = scram(users(image, now_ms=99), "t1", password, mechanism, is_token=True)
        assert result == Authenticated(ALICE, 100, shown="t1")
        assert result.principal.by_token
    for token_id, now_ms in (("t1", 101), ("t2", 50)):
        with pytest.raises(LoginRefused, match="no such user"):
            scram(users(image, now_ms=now_ms), token_id, password, Mechanism(2), is_token=True)


def test_a_token_is_not_a_user_and_a_user_is_no_token() -> None:
    image, password = token_image(until_ms=100)
    with pytest.raises(LoginRefused):
        scram(users(image), "t1", password, Mechanism(2))
    with pytest.raises(LoginRefused):
        scram(users(image), "alice", "pw", Mechanism(2), is_token=True)


# Nodes.


def test_nodes_know_their_own_user_without_any_metadata() -> None:
    node_user = NodeUser("node", "long and random")
    directory = users(Image(), node_user=node_user)
    assert scram(directory, "node", "long and random", Mechanism(2)).principal.name == "node"
    with pytest.raises(LoginRefused):
        scram(directory, "node", "short", Mechanism(2))
    with pytest.raises(LoginRefused):
        scram(users(Image()), "node", "long and random", Mechanism(2))
    assert "random" not in repr(node_user)


# Signed tokens.


class StubVerifier:
    def begin(self, token: str) -> Later[Callable[[], Authenticated]]:
        return failed(LoginRefused("no key")) if token == "unknown" else done(lambda: self._check(token))

    def _check(self, token: str) -> Authenticated:
        if token != "good":
            raise LoginRefused("not good")
        return Authenticated(ALICE, 1000)


def test_a_good_token_lets_in_and_a_bad_one_is_told_so_first() -> None:
    assert settle(OauthBearer(StubVerifier()).answer(b"n,,\x01auth=Bearer good\x01\x01")) == Said(
        b"", Authenticated(ALICE, 1000)
    )
    for token, why in ((b"bad", "not good"), (b"unknown", "no key")):
        server = OauthBearer(StubVerifier())
        assert settle(server.answer(b"n,,\x01auth=Bearer %b\x01\x01" % token)) == Said(b'{"status": "invalid_token"}')
        with pytest.raises(LoginRefused, match=why):
            server.answer(b"\x01")
    with pytest.raises(LoginRefused, match="somebody else"):
        settle(OauthBearer(StubVerifier()).answer(b"n,a=bob,\x01auth=Bearer good\x01\x01"))
    for noise in (b"", b"n,,", b"n,,\x01auth=Basic x\x01\x01", b"y,,\x01auth=Bearer good\x01\x01", b"\xff"):
        with pytest.raises(LoginRefused):
            OauthBearer(StubVerifier()).answer(noise)


def test_what_is_known_of_a_token_does_not_show_its_password() -> None:
    assert "hush" not in repr(TokenFacts("id", Principal("User", "alice"), b"hush", 1))
