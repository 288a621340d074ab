"""What proves a token, and which token a proof belongs to."""

from __future__ import annotations

from millpond.broker.security.token_proofs import TokenProofs
from millpond.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from millpond.metadata.tokens import DelegationTokens


def token(token_id: str) -> DelegationTokenRecord:
    return DelegationTokenRecord("User:a", "User:a", (), 0, 9, 9, token_id)


def test_a_proof_is_of_one_token_while_that_is_there() -> None:
    secret = b"one"
    proofs = TokenProofs(lambda: secret)
    tokens = DelegationTokens()
    for token_id in ("t1", "t2"):
        tokens.replay(token(token_id))
    first, second = proofs.proof_of("t1"), proofs.proof_of("t2")
    assert first is not None
    assert second is not None
    assert first != second
    assert (proofs.id_of(first, tokens), proofs.id_of(second, tokens)) == ("t1", "t2")
    assert proofs.id_of(b"x" * 64, tokens) is None
    tokens.replay(RemoveDelegationTokenRecord("t1"))
    assert proofs.id_of(first, tokens) is None
    tokens.replay(token("t1"))
    assert proofs.id_of(first, tokens) == "t1"
    other = DelegationTokens({"t3": token("t3")}, tokens.comings)
    third = proofs.proof_of("t3")
    assert third is not None
    assert proofs.id_of(third, other) == "t3"
    assert proofs.id_of(first, other) is None
    secret = b"another"
    assert proofs.id_of(third, other) is None


def test_without_a_secret_there_are_none() -> None:
    proofs = TokenProofs(lambda: None)
    assert not proofs.is_on
    assert proofs.proof_of("t") is None
    assert proofs.id_of(b"", DelegationTokens()) is None
