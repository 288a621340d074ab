"""SASL conversations, also with a broker that cheats."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from millpond.remote.errors import LoginFailed
from millpond.remote.sasl import Login, Plain, Scram


def test_plain_sends_one_message() -> None:
    conversation = Plain("ada", "secret")
    assert conversation.first() == b"\0ada\0secret"
    assert conversation.next(b"") is None


def test_scram_matches_the_example_of_its_rfc() -> None:
    """The conversation of RFC 7677, section 3."""
    conversation = Scram("sha256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert conversation.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert conversation.next(server_first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert conversation.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_special_characters_in_a_user_name_are_escaped() -> None:
    assert Scram("sha512", "a=b,c", "x", nonce="n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (b"r=other,s=AAAA,i=4096", "nonce"),
        (b"r=n,s=AAAA,i=4096", "nonce"),
        (b"r=nX,s=AAAA,i=99999999", "iterations"),
        (b"r=nX,s=AAAA,i=0", "iterations"),
        (b"r=nX,s=AAAA,i=-1", "iterations"),
        (b"r=nX,s=!,i=4096", "is invalid"),
        (b"e=unknown-user", "unknown-user"),
        (b"\xff\xfe", "nonce"),
    ],
)
def test_an_invalid_challenge_is_refused(message: bytes, fault: str) -> None:
    conversation = Scram("sha256", "user", "pencil", nonce="n")
    conversation.first()
    with pytest.raises(LoginFailed, match=fault):
        conversation.next(message)


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    conversation = Login("SCRAM-SHA-512", "user", "pencil").conversation()
    nonce = conversation.first().rpartition(b"r=")[2]
    assert conversation.next(b"r=" + nonce + b"more,s=" + base64.b64encode(b"salt") + b",i=10") is not None
    wrong = hmac.digest(b"guess", b"guess", "sha512")
    with pytest.raises(LoginFailed, match="does not know the password"):
        conversation.next(b"v=" + base64.b64encode(wrong))
    assert len(wrong) == hashlib.new("sha512").digest_size


def test_a_password_is_never_shown() -> None:
    assert "pencil" not in repr(Login("PLAIN", "user", "pencil"))
