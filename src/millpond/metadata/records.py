"""The records of the metadata log: a small frozen value for each kind, named as in the protocol.

Those of partitions are named tuples, which are created several times faster: there may be ten thousand of them at
once. Only the fields that this project uses are here; the others keep their defaults on the wire.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Final, TypeAlias
from uuid import UUID

from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass

NO_LEADER: Final = -1
LEADER_UNCHANGED: Final = -2

RECOVERED: Final = 0
RECOVERING: Final = 1
"""The leader was elected although it may lack records, and has not reported its recovery yet."""
RECOVERY_UNCHANGED: Final = -1


class ResourceType(IntEnum):
    """The resources with settings, with the numbers of the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerFeature:
    """The levels of a feature that a broker supports."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker has registered, possibly again with a new incarnation, address, rack or features."""

    broker_id: int
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    features: tuple[BrokerFeature, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord:
    """A broker was fenced (1) or unfenced (-1), or requests its shutdown (1); 0 is no change."""

    broker_id: int
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created. Its settings and partitions follow in separate records."""

    name: str
    topic_id: UUID


class PartitionRecord(NamedTuple):
    partition_id: int
    topic_id: UUID
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


class PartitionChangeRecord(NamedTuple):
    """The changes of a partition; None, LEADER_UNCHANGED and RECOVERY_UNCHANGED are no change.

    Naming a leader, even the same one, begins a new leader epoch; any change begins a new partition epoch.
    """

    partition_id: int
    topic_id: UUID
    isr: tuple[int, ...] | None = None
    leader: int = LEADER_UNCHANGED
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = RECOVERY_UNCHANGED
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LeadAnewRecord:
    """A broker has returned after a crash: every partition that it leads begins a new leader epoch.

    This is the only record that Kafka does not have: Kafka would write a PartitionChangeRecord for each partition,
    ten thousand after every crash of a large node.
    """

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and settings."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A setting of a topic, of one broker or (with an empty name) of all brokers; None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """The finalized level of a feature; 0 removes it."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below `next_producer_id` have been allocated, the last of them to this broker."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class QuotaPart:
    """A part of a quota entity: a type (user, client-id, ip) with a name, or None for the default."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """A quota of an entity, which may have two parts (a user's client id)."""

    entity: tuple[QuotaPart, ...]
    key: str
    value: float = 0.0
    remove: bool = False


@dataclass(frozen=True, slots=True)
class UserScramCredentialRecord:
    """A user's credential for one mechanism. It does not contain the password."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class RemoveUserScramCredentialRecord:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class DelegationTokenRecord:
    """A delegation token was created or renewed. Principals are written as `User:name`."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str


@dataclass(frozen=True, slots=True)
class RemoveDelegationTokenRecord:
    token_id: str


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord:
    """An ACL. Its id is used only by the record that removes it."""

    id: UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord:
    id: UUID


@dataclass(frozen=True, slots=True)
class NoOpRecord:
    """No change; shows that the log is alive."""


Record: TypeAlias = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | LeadAnewRecord
    | RemoveTopicRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | ClientQuotaRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
)
