"""One request on its way through the broker: the arguments of a handler beside the request itself."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millpond.base.principal import ANONYMOUS, Principal
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.base.values import dataclass
from millpond.broker.security.access import EVERYBODY, Access
from millpond.coordinators.shard import Sees, sees_all
from millpond.log.checks import RecordFaults
from millpond.log.lookup import LookupBudget

if TYPE_CHECKING:
    from millpond.broker.requests.connection import Connection
    from millpond.broker.security.quotas import Meter

NODE_CLIENT_ID = "millpond-node-"
"""The client ids of requests between nodes begin with this."""


def is_of_node(client_id: str | None) -> bool:
    return (client_id or "").startswith(NODE_CLIENT_ID)


@dataclass(slots=True)
class Call:
    """One request on its way through the broker; a request of this node to itself has no connection."""

    _connection: Connection | None
    version: int
    client_id: str | None
    arrived_us: int = 0
    """Arrival time by the monotonic clock."""
    access: Access = EVERYBODY
    meter: Meter | None = None
    """The client's quotas, if it has any."""
    record_faults: dict[tuple[UUID, str, int], RecordFaults] | None = None
    """The faults of a Produce request's records, if `record_checks` has inspected them."""
    named_twice: Container[tuple[UUID, str, int]] | None = None
    """The partitions that a Produce request names more than once, if this is only a piece of it."""
    requested_partitions: dict[Any, Any] | None = None
    """The partitions of a large Fetch request, if they were looked up in steps."""
    lookup_budget: LookupBudget | None = None
    """The remaining cost limit of a ListOffsets request's lookups, for all of its pieces together."""
    is_piece: bool = False
    """Whether the request is a piece of a larger one, whose responses are joined before they are encoded."""
    asker: Principal | None = None
    """The client on whose behalf another node asks, if the answer depends on it."""
    change_id: str | None = None
    """The id of a change that another node forwarded, or of one that this node first forwarded to another."""
    piece_number: int = 0
    """The number of the current piece, if `is_piece`."""

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "a request of the node to itself has no connection"
        return self._connection

    @property
    def is_own(self) -> bool:
        """Whether this node asks itself, which needs no rights."""
        return self._connection is None

    @property
    def principal(self) -> Principal:
        """The client's principal; see `is_own` for requests of the node to itself."""
        if self.asker is not None:
            return self.asker
        principal = ANONYMOUS if self._connection is None else self._connection.principal
        assert principal is not None, "the client has not logged in"
        return principal

    @property
    def is_from_node(self) -> bool:
        """Whether the request comes from a node of the cluster, and so is not forwarded to a third."""
        connection = self._connection
        if connection is None:
            return True
        says_so = connection.may_be_node and is_of_node(self.client_id)
        return says_so and self.may(Operation.CLUSTER_ACTION, AclResource.CLUSTER, CLUSTER_NAME)

    @property
    def is_wanted(self) -> bool:
        """Whether the client is still connected. Thread-safe."""
        return self._connection is None or self._connection.is_open

    @property
    def client_host(self) -> str:
        return self.connection.host

    @property
    def is_unlimited(self) -> bool:
        """Whether the client may do everything, so that items need no checks of their own."""
        access = self.access
        return not access.is_on or self._connection is None or access.is_super(self.principal)

    def demand(self, operation: Operation, resource: AclResource, name: str) -> bool:
        """Like `may`, for a resource that the request names: a refusal goes to the audit log."""
        if self.may(operation, resource, name):
            return True
        self.access.note_refused(self.principal, self.client_host, operation, resource, name)
        return False

    def may(self, operation: Operation, resource: AclResource, name: str) -> bool:
        """Whether the client may do this; the node itself always may."""
        access = self.access
        if not access.is_on or self._connection is None:
            return True
        return access.may(self.principal, self.client_host, operation, resource, name)

    def sight(self) -> Sees:
        """Whether the client may see a topic, as a function that outlives this call."""
        if self.is_unlimited:
            return sees_all
        return partial(self.access.may, self.principal, self.client_host, Operation.DESCRIBE, AclResource.TOPIC)

    def may_any(self, operation: Operation, resource: AclResource) -> bool:
        """Whether the client may do this to any resource of this kind."""
        access = self.access
        if not access.is_on or self._connection is None:
            return True
        return access.may_any(self.principal, self.client_host, operation, resource)
