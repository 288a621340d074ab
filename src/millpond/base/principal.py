"""Who is asking: `User:alice`, as Kafka writes it in its ACLs and quotas."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from millpond.base.values import dataclass

USER: Final = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A kind and a name. Two with the same are one and the same, however they have shown who they are."""

    kind: str
    name: str
    by_token: bool = field(default=False, compare=False)
    """Whether a delegation token was shown, in place of the user's own password."""
    by_password: bool = field(default=False, compare=False)
    """Whether it was a password that the metadata know: without it there is no such user any more."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """From `User:alice`; the name may have colons of its own. ValueError where there is no kind or no name."""
        kind, colon, name = text.partition(":")
        if not colon or not kind or not name:
            raise ValueError(f"{text!r} is not a principal of the form User:name")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Whoever comes by a listener that asks nobody who they are."""
