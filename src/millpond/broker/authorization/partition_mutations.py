"""The controller mutation quota (KIP-599), for the APIs that create or delete partitions.

A client whose request version has the error code gets it for every topic beyond its quota, and can retry after the
throttle time of the response. Requests of older versions are carried out, and the client is throttled afterwards. The
controller charges the quota, whichever node got the request; only auto-created topics are charged at the node that
got the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.values import dataclass
from millpond.broker.authorization.required_rights import Screened, without
from millpond.config.node import MAX_PARTITIONS, MAX_PARTITIONS_PER_TOPIC, NUM_PARTITIONS

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext
    from millpond.broker.requests.call import Call
    from millpond.broker.security.bucket import Bucket

BEYOND_QUOTA: Final = "beyond the quota controller_mutation_rate: ask again after the throttle time"


@dataclass(frozen=True, slots=True)
class Mutations:
    """How the quota applies to an API."""

    strict_from: int
    """The first version whose clients handle THROTTLING_QUOTA_EXCEEDED."""
    lists: tuple[str, ...]
    """The request's fields for topics; exactly one of them is used."""
    count: Callable[[NodeContext, MetadataContext, Any], int]
    """How many partitions a topic of the request creates or deletes; 0 if it will be refused anyway."""
    refuse: Callable[[Any, ErrorCode, str], Any]
    """The result for a topic beyond the quota."""
    into: str
    """The response's field for the results."""

    def screen(
        self, node: NodeContext, metadata: MetadataContext, call: Call, bucket: Bucket, request: Any
    ) -> Screened | None:
        """The part of the request within the quota; None for all of it."""
        if getattr(request, "validate_only", False):
            return None
        of = next((name for name in self.lists if getattr(request, name)), self.lists[0])
        wanted = getattr(request, of)
        is_strict = call.version >= self.strict_from
        allowed, refused = taken_in_order(node, metadata, bucket, wanted, self.count, is_strict=is_strict)
        if not refused:
            return None
        answers = [self.refuse(each, ErrorCode.THROTTLING_QUOTA_EXCEEDED, BEYOND_QUOTA) for each in refused]
        return without(request, of, allowed, self.into, answers)


def taken_in_order(
    node: NodeContext,
    metadata: MetadataContext,
    bucket: Bucket,
    wanted: Iterable[Any],
    count: Callable[[NodeContext, MetadataContext, Any], int],
    *,
    is_strict: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Split into allowed and refused: an item is allowed if the bucket has no debt when its turn comes."""
    now_ms = node.clock.monotonic_ms()
    allowed: list[Any] = []
    refused: list[Any] = []
    for each in wanted:
        size = count(node, metadata, each)
        if size and is_strict and bucket.wait_ms(now_ms):
            refused.append(each)
            continue
        bucket.take(size, now_ms)
        allowed.append(each)
    return allowed, refused


def new_partitions(node: NodeContext, metadata: MetadataContext, name: str, count: int, assigned: int) -> int:
    """The partitions of a topic to create: as assigned, else `count`, else the default when `count` is -1."""
    if name in metadata.image.topics:
        return 0
    wanted = assigned or (count if count > 0 else node.settings[NUM_PARTITIONS])
    return if_possible(node, metadata, wanted, wanted)


def if_possible(node: NodeContext, metadata: MetadataContext, in_topic: int, added: int) -> int:
    """The number of partitions added; 0 if a limit will refuse them, because refused partitions are not charged."""
    settings = node.settings
    in_cluster = metadata.image.partitions_total + added
    return 0 if in_topic > settings[MAX_PARTITIONS_PER_TOPIC] or in_cluster > settings[MAX_PARTITIONS] else added


def within_quota(node: NodeContext, metadata: MetadataContext, call: Call, names: list[str]) -> list[str]:
    """The topics that may be auto-created now; the client asks for the others again."""
    bucket = None if call.meter is None else call.meter.mutations
    if bucket is None or not names:
        return names
    return taken_in_order(
        node, metadata, bucket, names, lambda node, metadata, name: new_partitions(node, metadata, name, -1, 0)
    )[0]
