"""What a connection was found to be allowed: producers and consumers ask for the same again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.base.rights import Operation

if TYPE_CHECKING:
    from millpond.base.principal import Principal
    from millpond.metadata.acls import Acls


class Asker(Protocol):
    """A connection, as far as rights have to do with it."""

    host: str
    principal: Principal | None
    granted: Granted | None

    @property
    def known(self) -> Principal: ...


class Granted:
    """What one connection was found to be allowed, while the ACLs are the same and so is the one who asks."""

    __slots__ = ("_acls", "_principal", "_version", "topics")

    def __init__(self, acls: Acls, principal: Principal | None) -> None:
        self._acls, self._version, self._principal = acls, acls.version, principal
        self.topics: dict[Operation, set[str]] = {Operation.READ: set(), Operation.WRITE: set()}

    def is_from(self, acls: Acls, principal: Principal | None) -> bool:
        return self._version == acls.version and self._acls is acls and self._principal is principal
