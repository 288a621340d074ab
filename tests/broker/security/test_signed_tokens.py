"""Which signed tokens are accepted."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from millpond.base.later import done
from millpond.base.ports import World
from millpond.broker.security.mechanisms import Authenticated, LoginRefused
from millpond.broker.security.signed_tokens import Expected, OauthUnavailable, SignedTokens, checker_of
from millpond.broker.security.signing_keys import SigningKeys, keys_in
from millpond.config.node import node_settings
from millpond.sim.world.clock import VirtualClock

KEY = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, **facts: Any) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), **facts}


KEYS = json.dumps({"keys": [jwk(KEY, kid="k", use="sig", alg="RS256"), jwk(CURVE, kid="c")]}).encode()
EXPECTED = Expected(("mill",), "https://issuer", 30, "sub")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def check(shown: str, expected: Expected = EXPECTED) -> Authenticated:
    keys = SigningKeys(lambda: done(keys_in(KEYS)), VirtualClock(), 3_600_000)
    begun: list[Callable[[], Authenticated]] = []
    refused: list[Exception] = []
    SignedTokens(expected, keys).begin(shown).then(begun.append, refused.append)
    if refused:
        raise refused[0]
    return begun[0]()


def token(key: Any = KEY, kid: str | None = "k", algorithm: str = "RS256", **changes: Any) -> str:
    claims = {"sub": "alice", "aud": "mill", "iss": "https://issuer", "exp": int(time.time()) + 100, **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers=None if kid is None else {"kid": kid})


def test_a_good_token_says_who_and_until_when() -> None:
    until = int(time.time()) + 100
    result = check(token(exp=until))
    assert (str(result.principal), result.until_ms) == ("User:alice", (until + 30) * 1000)
    assert str(check(token(CURVE, "c", "ES256")).principal) == "User:alice"


@pytest.mark.parametrize(
    "bad",
    [
        lambda: token(OTHER),
        lambda: token(kid="x"),
        lambda: token(kid=None),
        lambda: token(aud="another"),
        lambda: token(aud=None),
        lambda: token(iss="https://evil"),
        lambda: token(exp=int(time.time()) - 31),
        lambda: token(exp=None),
        lambda: token(sub=None),
        lambda: token(sub=""),
        lambda: token(sub="a\nb"),
        lambda: token(nbf=int(time.time()) + 100),
        lambda: token(algorithm="RS512"),
        lambda: jwt.encode({"sub": "alice", "exp": 1 << 40}, None, "none"),
        lambda: jwt.encode({"sub": "alice", "exp": 1 << 40}, "s" * 32, "HS256", headers={"kid": "k"}),
        lambda: token(exp=float("inf")),
        lambda: token(exp=float("nan")),
        lambda: token(exp="soon"),
        lambda: token(exp=[1]),
        lambda: token(sub=7),
        lambda: token(aud={"a": 1}),
        lambda: b64(b"[" * 30_000) + ".e30.AAAA",
        lambda: b64(b'{"alg":"RS256","kid":["k"]}') + ".e30.AAAA",
        lambda: b64(b'{"alg":{}}') + ".e30.AAAA",
        lambda: b64(b"7") + ".e30.AAAA",
        lambda: token()[:-3],
        lambda: "",
        lambda: "a.b.c",
        lambda: "..",
    ],
)
def test_whatever_is_wrong_is_refused(bad: Callable[[], str]) -> None:
    with pytest.raises(LoginRefused):
        check(bad())


def test_clocks_may_differ_a_little() -> None:
    assert check(token(exp=int(time.time()) - 20))


def test_a_public_key_is_no_password() -> None:
    """The classic attack: sign with HMAC, using the public key as the secret."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    claims = {"sub": "alice", "aud": "mill", "iss": "https://issuer", "exp": 1 << 40}
    signed = part(b'{"alg":"HS256","kid":"k"}') + b"." + part(json.dumps(claims).encode())
    forged = signed + b"." + part(hmac.digest(public, signed, hashlib.sha256))
    with pytest.raises(LoginRefused, match="signed by 'HS256'"):
        check(forged.decode())


def test_only_keys_for_signatures_by_a_pair_count() -> None:
    result = keys_in(
        json.dumps(
            {"keys": [jwk(KEY, kid="enc", use="enc"), {"kty": "oct", "k": "AAAA", "kid": "o"}, {"kty": "?"}, 7]}
        ).encode()
    )
    assert result == {}
    for noise in (b"", b"[]", b"{}", b'{"keys": 1}', b"x" * (1 << 21)):
        with pytest.raises(ValueError):
            keys_in(noise)


# What a node requires before it accepts tokens.

SCOPED = {"sasl.oauthbearer.expected.audience": "mill", "sasl.oauthbearer.expected.issuer": "https://issuer"}


def checker(**texts: str) -> SignedTokens:
    settings = node_settings({"sasl.oauthbearer.jwks.endpoint.url": "file:///keys", **texts})
    world = SimpleNamespace(fetch=lambda _: done(KEYS), workers=SimpleNamespace(run=lambda job: done(job())))
    world.clock = VirtualClock()
    return checker_of(settings, "CLIENT", cast(World, world), lambda *_, **__: None)


@pytest.mark.parametrize("missing", SCOPED)
def test_a_node_does_not_start_without_audience_and_issuer(missing: str) -> None:
    some = {name: text for name, text in SCOPED.items() if name != missing}
    with pytest.raises(OauthUnavailable, match=missing):
        checker(**some)
    checker(**some, **{"sasl.oauthbearer.unrestricted": "true"})
    checker(**SCOPED)


def believed_by(tokens: SignedTokens, shown: str) -> str:
    begun: list[Callable[[], Authenticated]] = []
    tokens.begin(shown).then(begun.append)
    return str(begun[0]().principal)


def test_no_token_names_a_super_user_or_a_node_unless_that_is_configured() -> None:
    texts = {
        **SCOPED,
        "super.users": "User:admin;User:millpond-node",
        "inter.broker.sasl.username": "millpond-node",
    }
    strict, lenient = checker(**texts), checker(**texts, **{"sasl.oauthbearer.super.users.enable": "true"})
    assert believed_by(strict, token(sub="alice")) == "User:alice"
    for tokens, name in ((strict, "admin"), (strict, "millpond-node"), (lenient, "millpond-node")):
        with pytest.raises(LoginRefused, match="super user"):
            believed_by(tokens, token(sub=name))
    assert believed_by(lenient, token(sub="admin")) == "User:admin"
