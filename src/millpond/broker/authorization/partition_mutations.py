"""The quota of partitions that are made and deleted (KIP-599), for the APIs that do so.

A client whose version knows the error gets it for every topic that is beyond its quota, and can ask again after the
time that the answer tells. What an older one asks for is done, and it waits afterwards. It is measured at the
controller, whichever node was asked; only topics that come into being because somebody asks for them are measured at
the node that was asked.
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
    """How an API is held to the quota."""

    strict_from: int
    """From this version on clients know that a topic may be refused for now."""
    lists: tuple[str, ...]
    """The fields of the request that may have its topics; one of them has."""
    count: Callable[[NodeContext, MetadataContext, Any], int]
    """How many partitions one of them makes or deletes; 0 where it will be refused anyway."""
    refuse: Callable[[Any, ErrorCode, str], Any]
    """The answer for one that is beyond the quota."""
    into: str
    """The field of the response with the answers."""

    def screen(
        self, node: NodeContext, metadata: MetadataContext, call: Call, bucket: Bucket, request: Any
    ) -> Screened | None:
        """The request as it may be served now; None where all of it may."""
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
    """Those that may be done, as long as nothing is owed when their turn comes; and the others."""
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
    """Of a topic that is to be made, with so many partitions or (-1) as many as usual."""
    if name in metadata.image.topics:
        return 0
    wanted = assigned or (count if count > 0 else node.settings[NUM_PARTITIONS])
    return if_possible(node, metadata, wanted, wanted)


def if_possible(node: NodeContext, metadata: MetadataContext, in_topic: int, added: int) -> int:
    """How many are added; 0 where that is more than there may be. Nobody pays for what is refused."""
    settings = node.settings
    in_cluster = metadata.image.partitions_total + added
    return 0 if in_topic > settings[MAX_PARTITIONS_PER_TOPIC] or in_cluster > settings[MAX_PARTITIONS] else added


def within_quota(node: NodeContext, metadata: MetadataContext, call: Call, names: list[str]) -> list[str]:
    """Those topics that may be made now because a client asks for them; it asks again for the others."""
    bucket = None if call.meter is None else call.meter.mutations
    if bucket is None or not names:
        return names
    return taken_in_order(
        node, metadata, bucket, names, lambda node, metadata, name: new_partitions(node, metadata, name, -1, 0)
    )[0]
