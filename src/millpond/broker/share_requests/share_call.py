"""What ShareFetch and ShareAcknowledge have in common: who may ask, the session, and leader hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, demand_topic, whole
from millpond.broker.responses.current_leader import MOVED, current_leader, endpoints
from millpond.broker.shares.acknowledgements import Codes, acknowledge
from millpond.coordinators.shares.keys import GROUP_ID_LENGTH_MAX
from millpond.metadata.features import SHARE_VERSION

if TYPE_CHECKING:
    from millpond.base.later import Later
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.replication.partitions import Partition
    from millpond.broker.requests.call import Call
    from millpond.broker.shares.sessions import PartitionKey, ShareSession
    from millpond.broker.shares.verdicts import Acknowledgement

T = TypeVar("T")

MEMBER_ID_LENGTH_MAX: Final = 36
RENEWALS_FROM: Final = 2

ON_TOPIC = Need(Operation.READ, AclResource.TOPIC)
_ON_GROUP = whole(Operation.READ, AclResource.GROUP, lambda request: request.group_id or "")
RIGHTS: Final = Rights((*_ON_GROUP.needs, ON_TOPIC), _ON_GROUP.screen)
"""The right on topics is checked for each partition."""


class ShareCall:
    """One request of a member, and what its response needs of this node."""

    __slots__ = ("_data", "_leaders", "_metadata", "_node", "call", "request")

    def __init__(
        self, node: NodeContext, metadata: MetadataContext, data: DataContext, call: Call, request: Any
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._data = data
        self.call = call
        self.request = request
        self._leaders: set[int] = set()
        """Nodes that the client should ask instead."""

    def check(self) -> None:
        """Refuse a request that no session could serve."""
        if not self._metadata.image.features.get(SHARE_VERSION, 0):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, "share.version is 0: raise it (millpond cluster upgrade)")
        if not self.request.group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "the request has no group id")
        if len(self.request.group_id) > GROUP_ID_LENGTH_MAX:
            # Each of its sessions and share partitions would keep it.
            raise Refused(
                ErrorCode.INVALID_GROUP_ID, f"a share group id has at most {GROUP_ID_LENGTH_MAX} characters"
            )
        if not 0 < len(self.request.member_id or "") <= MEMBER_ID_LENGTH_MAX:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a member id has 1 to {MEMBER_ID_LENGTH_MAX} characters")
        if not self.call.is_wanted:
            # Its session would never end.
            raise Refused(ErrorCode.NETWORK_EXCEPTION, "the client is gone")

    @property
    def is_renewal(self) -> bool:
        return self.call.version >= RENEWALS_FROM and self.request.is_renew_ack

    @property
    def lock_duration_ms(self) -> int:
        return self._data.shares().group_settings(self.request.group_id or "").window.lock_duration_ms

    @property
    def owner(self) -> Principal | None:
        return self.call.principal if self.call.access.is_on else None

    def session(self) -> ShareSession:
        """The session that this request continues or ends. Refused if there is none."""
        request = self.request
        return self._data.shares().sessions.find(
            request.group_id, request.member_id, self.call.connection, request.share_session_epoch
        )

    def may_read(self, key: PartitionKey, partition: Partition | None) -> bool:
        call = self.call
        if not call.access.is_on or call.is_unlimited:
            return True
        if partition is not None:
            topic = partition.name.topic
            return call.access.may_often(call.connection, Operation.READ, topic) or call.demand(*ON_TOPIC, topic)
        return demand_topic(self._metadata, call, Operation.READ, None, key[0])

    def acknowledge(
        self, session: ShareSession, wanted: Sequence[tuple[PartitionKey, list[Acknowledgement]]]
    ) -> Later[Codes]:
        return acknowledge(
            self._data.shares(),
            self.call,
            session,
            wanted,
            is_renewal=self.is_renewal,
            may_read=self.may_read,
            absence=self._data.absence,
        )

    def leader_hint(self, kind: Callable[..., T], key: PartitionKey, code: ErrorCode) -> T:
        """The current leader of a partition that has moved."""
        if code in MOVED:
            leader = current_leader(self._node, self._metadata, self._data, *key)
            if leader is not None:
                self._leaders.add(leader.node_id)
                return kind(leader_id=leader.node_id, leader_epoch=leader.leader_epoch)
        return kind(leader_id=-1, leader_epoch=-1)

    def node_endpoints(self, kind: Callable[..., T]) -> list[T]:
        return [
            kind(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints(self._node, self.call.connection, self._leaders)
        ]


def by_topic(topic_kind: Callable[..., Any], partitions: Mapping[PartitionKey, Any]) -> list[Any]:
    """The topics of a response, from the responses of the partitions."""
    topics: dict[UUID, list[Any]] = {}
    for (topic_id, _), partition in partitions.items():
        topics.setdefault(topic_id, []).append(partition)
    return [topic_kind(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]


def keys_of(topics: Iterable[Any]) -> list[PartitionKey]:
    return [(topic.topic_id, each.partition_index) for topic in topics for each in topic.partitions]
