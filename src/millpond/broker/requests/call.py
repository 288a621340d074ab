"""One request on its way through the broker: what a handler is given beside the request itself."""

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
"""How the client ids of nodes begin when they ask each other."""


def is_of_node(client_id: str | None) -> bool:
    return (client_id or "").startswith(NODE_CLIENT_ID)


@dataclass(slots=True)
class Call:
    """One request on its way through the broker; without a connection it is this node's own."""

    _connection: Connection | None
    version: int
    client_id: str | None
    arrived_us: int = 0
    """When it came in, by the monotonic clock."""
    access: Access = EVERYBODY
    meter: Meter | None = None
    """What the one who asks takes from, where there are quotas for it."""
    record_faults: dict[tuple[UUID, str, int], RecordFaults] | None = None
    """What is wrong with the records of a Produce request, where somebody has looked at them (`record_checks`)."""
    named_twice: Container[tuple[UUID, str, int]] | None = None
    """The partitions that a Produce request names more than once, where only a piece of it is at hand."""
    wishes: dict[Any, Any] | None = None
    """What a Fetch request asks of each partition, if it names so many that they were looked up in steps."""
    lookup_budget: LookupBudget | None = None
    """What the look-ups of a ListOffsets request may still cost, all of its pieces together."""
    is_piece: bool = False
    """Whether the request is a piece of a larger one: its response is joined with others, and must not be encoded."""
    asker: Principal | None = None
    """For whom another node asks, where that matters to the answer."""

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "what a node asks of itself comes by no connection"
        return self._connection

    @property
    def is_own(self) -> bool:
        """Whether this node asks itself: nobody else's rights are in question."""
        return self._connection is None

    @property
    def principal(self) -> Principal:
        """Who asks. What a node asks of itself is asked by nobody: see `is_own`."""
        if self.asker is not None:
            return self.asker
        principal = ANONYMOUS if self._connection is None else self._connection.principal
        assert principal is not None, "whoever has not logged in is not served"
        return principal

    @property
    def is_from_node(self) -> bool:
        """Whether a node of the cluster asks, this one or another: what it asks is not sent on to a third."""
        connection = self._connection
        if connection is None:
            return True
        says_so = connection.may_be_node and is_of_node(self.client_id)
        return says_so and self.may(Operation.CLUSTER_ACTION, AclResource.CLUSTER, CLUSTER_NAME)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for the answer. Any thread may ask."""
        return self._connection is None or self._connection.is_open

    @property
    def client_host(self) -> str:
        return self.connection.host

    @property
    def is_unlimited(self) -> bool:
        """Whether whoever asks may do everything, so that nothing has to be asked for piece by piece."""
        access = self.access
        return not access.is_on or self._connection is None or access.is_super(self.principal)

    def demand(self, operation: Operation, resource: AclResource, name: str) -> bool:
        """The same as `may` for what was asked for by name: if not, it is noted that they tried."""
        if self.may(operation, resource, name):
            return True
        self.access.note_refused(self.principal, self.client_host, operation, resource, name)
        return False

    def may(self, operation: Operation, resource: AclResource, name: str) -> bool:
        """Whether whoever asks may do this. What a node asks of itself it may."""
        access = self.access
        if not access.is_on or self._connection is None:
            return True
        return access.may(self.principal, self.client_host, operation, resource, name)

    def sight(self) -> Sees:
        """Whether whoever asks may see a topic, for those who remember it longer than this call."""
        if self.is_unlimited:
            return sees_all
        return partial(self.access.may, self.principal, self.client_host, Operation.DESCRIBE, AclResource.TOPIC)

    def may_any(self, operation: Operation, resource: AclResource) -> bool:
        """Whether there is anything of this kind to which they may do this."""
        access = self.access
        if not access.is_on or self._connection is None:
            return True
        return access.may_any(self.principal, self.client_host, operation, resource)
