"""Who answers whether somebody may do something. Without an authorizer everybody may do everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from millpond.base.principal import Principal
    from millpond.base.rights import AclResource, Operation
    from millpond.broker.security.granted import Asker


class Access(Protocol):
    """Asked once for each thing that a request names, if it `is_on`."""

    is_on: bool

    def may(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> bool: ...

    def may_often(self, connection: Asker, operation: Operation, topic: str) -> bool:
        """The same of a topic, for what producers and consumers ask again and again by one connection."""
        ...

    def may_any(self, principal: Principal, host: str, operation: Operation, resource: AclResource) -> bool:
        """Whether there is any thing of this kind to which they may do this."""
        ...

    def is_super(self, principal: Principal) -> bool:
        """Whether they may do everything, whatever ACLs say."""
        ...

    def note_refused(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> None:
        """Somebody has asked for what they may not, and is told so."""
        ...


class _Everybody:
    """No authorizer is on."""

    is_on = False

    def may(self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str) -> bool:
        return True

    def may_often(self, connection: Asker, operation: Operation, topic: str) -> bool:
        return True

    def may_any(self, principal: Principal, host: str, operation: Operation, resource: AclResource) -> bool:
        return True

    def is_super(self, principal: Principal) -> bool:
        return True

    def note_refused(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> None:
        raise AssertionError("everybody may do everything")


EVERYBODY: Final[Access] = _Everybody()
