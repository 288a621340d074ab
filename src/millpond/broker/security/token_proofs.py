"""The HMACs of delegation tokens: computed from the token id and a secret that the nodes share, never stored."""

from __future__ import annotations

from collections.abc import Callable

from millpond.base.scram import mac, to_base64
from millpond.metadata.tokens import DelegationTokens


class TokenProofs:
    def __init__(self, secret: Callable[[], bytes | None]) -> None:
        self._secret = secret
        self._by_proof: dict[bytes, str] = {}
        self._known: tuple[bytes, int, DelegationTokens] | None = None
        """The secret and the token state that `_by_proof` was built from."""

    @property
    def is_on(self) -> bool:
        return self._secret() is not None

    def proof_of(self, token_id: str) -> bytes | None:
        """The token's HMAC; None without a secret."""
        secret = self._secret()
        return None if secret is None else mac("sha512", secret, token_id.encode())

    def password_of(self, token_id: str) -> bytes | None:
        """The password that a client logs in with: the HMAC in base 64."""
        proof = self.proof_of(token_id)
        return None if proof is None else to_base64(proof).encode()

    def id_of(self, proof: bytes, tokens: DelegationTokens) -> str | None:
        """The id of the token with this HMAC."""
        secret = self._secret()
        if secret is None:
            return None
        known = self._known
        if known is None or known[:2] != (secret, tokens.comings) or known[2] is not tokens:
            # Known HMACs are kept: out of thousands of tokens only new ones are computed.
            made = {} if known is None or known[0] != secret else self._by_proof
            ids = set(made.values())
            made |= {
                mac("sha512", secret, each.token_id.encode()): each.token_id
                for each in tokens
                if each.token_id not in ids
            }
            self._by_proof = {one: each for one, each in made.items() if tokens.get(each) is not None}
            self._known = secret, tokens.comings, tokens
        found = self._by_proof.get(proof)
        return found if found is not None and tokens.get(found) is not None else None
