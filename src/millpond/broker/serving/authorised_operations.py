"""What a client may do, as the bit fields of Metadata and the Describe APIs. Without an authorizer, everything.

A client that does not ask is told `NOT_ASKED_FOR`, the protocol's default.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    """By the numbers of the protocol."""

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


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED_FOR: Final = -(1 << 31)
_SETTINGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
ON_TOPIC: Final = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    *_SETTINGS,
)
ON_GROUP: Final = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_SETTINGS)
ON_CLUSTER: Final = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
    *_SETTINGS,
)
