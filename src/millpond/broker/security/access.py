"""The authorizer interface. Without an authorizer every client may do everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from millpond.base.principal import Principal
    from millpond.base.rights import AclResource, Operation
    from millpond.broker.security.granted import Asker


class Access(Protocol):
    """Called once for each resource that a request names, if it `is_on`."""

    is_on: bool

    def may(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> bool: ...

    def may_often(self, connection: Asker, operation: Operation, topic: str) -> bool:
        """`may` for a topic, cached per connection because producers and consumers repeat the same check."""
        ...

    def may_any(self, principal: Principal, host: str, operation: Operation, resource: AclResource) -> bool:
        """Whether the principal may do this to any resource of this type."""
        ...

    def is_super(self, principal: Principal) -> bool:
        """Whether the principal may do everything, whatever the ACLs say."""
        ...

    def note_refused(
        self, principal: Principal, host: str, operation: Operation, resource: AclResource, name: str
    ) -> None:
        """Record a request that is answered with an authorization error."""
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
