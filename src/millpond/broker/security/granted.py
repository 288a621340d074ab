"""The authorization cache of a connection: producers and consumers repeat the same checks on every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.base.rights import Operation

if TYPE_CHECKING:
    from millpond.base.principal import Principal
    from millpond.metadata.acls import Acls


class Asker(Protocol):
    """The part of a connection that the authorizer uses."""

    host: str
    principal: Principal | None
    granted: Granted | None

    @property
    def known(self) -> Principal: ...


class Granted:
    """The topics that one connection may read or write, valid while its principal and the ACLs are unchanged."""

    __slots__ = ("_acls", "_principal", "_version", "topics")

    def __init__(self, acls: Acls, principal: Principal | None) -> None:
        self._acls, self._version, self._principal = acls, acls.version, principal
        self.topics: dict[Operation, set[str]] = {Operation.READ: set(), Operation.WRITE: set()}

    def is_from(self, acls: Acls, principal: Principal | None) -> bool:
        return self._version == acls.version and self._acls is acls and self._principal is principal
