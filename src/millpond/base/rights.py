"""The words of rights, by the numbers of the protocol: what is done, and to what."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    """What somebody may do. ANY stands only in filters, ALL only in ACLs."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResource(IntEnum):
    """What a right is about. ANY stands only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names what it is about. ANY and MATCH stand only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What an ACL says. ANY stands only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The one name of the resource that is the cluster itself."""

WILDCARD: Final = "*"
"""As the name of a resource, as a host, or as a user: all of them."""
