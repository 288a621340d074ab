"""Who sends a request: `User:alice`, as Kafka writes it in ACLs and quotas."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from millpond.base.values import dataclass

USER: Final = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A type and a name. Principals with the same are equal, however they authenticated."""

    kind: str
    name: str
    by_token: bool = field(default=False, compare=False)
    """Whether it authenticated with a delegation token instead of the user's password."""
    by_password: bool = field(default=False, compare=False)
    """Whether it authenticated with a password from the metadata: removing that removes the user."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse `User:alice`; the name may contain colons. ValueError without a type or a name."""
        kind, colon, name = text.partition(":")
        if not colon or not kind or not name:
            raise ValueError(f"{text!r} is not a principal of the form User:name")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal on a listener without authentication."""
