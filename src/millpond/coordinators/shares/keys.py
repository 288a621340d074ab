"""Share partitions: their names, and which partition of `__share_group_state` has their state."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.runtime import KEY_LENGTH_MAX, partition_for

PARTITION_MAX = (1 << 31) - 1
GROUP_ID_LENGTH_MAX = KEY_LENGTH_MAX - len(f":{'A' * 22}:{PARTITION_MAX}")
"""With a longer id, the keys of its share partitions would have no coordinator."""


class SharePartition(NamedTuple):
    """A partition as one share group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """Its name in FindCoordinator: `group:topicId:partition`, with the topic id in Kafka's notation."""
        topic = urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
        return f"{self.group_id}:{topic}:{self.partition}"


def key_of(share_partition: SharePartition, partitions: int) -> int:
    """The partition of `__share_group_state`, out of so many, that has the state of a share partition."""
    return partition_for(share_partition.coordinator_key, partitions)


def parse_coordinator_key(key: str) -> SharePartition:
    """Read a key of FindCoordinator from its end, because a group id may have colons."""
    group_id, _, rest = key.rpartition(":")[0].rpartition(":")
    topic, partition = rest, key.rpartition(":")[2]
    if not group_id or not partition.isascii() or not partition.isdecimal() or int(partition) > PARTITION_MAX:
        raise _malformed(key)
    try:
        topic_id = UUID(bytes=urlsafe_b64decode(topic + "=="))
    except (ValueError, NotBase64):
        raise _malformed(key) from None
    parsed = SharePartition(group_id, topic_id, int(partition))
    if parsed.coordinator_key != key:
        # Another spelling of the same partition has another hash.
        raise _malformed(key)
    return parsed


def _malformed(key: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"{key!r} is not a share partition: give group:topicId:partition")
