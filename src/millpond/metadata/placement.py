"""Placement of new replicas: leaders spread evenly, replicas over racks, no broker twice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ports import Entropy
from millpond.config.node import BROKER_DRAINED
from millpond.metadata.image import Broker, Image, Resource
from millpond.metadata.records import ResourceType


def place(
    brokers: Iterable[Broker], partitions: int, replication_factor: int, entropy: Entropy
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the leader first. Refused if there are too few brokers."""
    everyone = list(brokers)
    active = _ring([broker for broker in everyone if broker.is_active])
    inactive = _ring([broker for broker in everyone if not broker.is_active])
    if replication_factor > len(everyone):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of registered brokers, "
            f"{len(everyone)}",
        )
    if not active:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "no broker is active")
    # Anywhere in all rounds of the ring: otherwise topics with few partitions would all have the same neighbours.
    start = entropy.below(len(active) * max(len(active) - 1, 1))
    placed = []
    # With thousands of partitions the same few combinations repeat.
    cache: dict[tuple[int, int], tuple[int, ...]] = {}
    for number in range(partitions):
        turn, step = divmod(start + number, len(active))
        # Each round of the ring pairs a leader with other followers, so that its load is shared when it fails.
        shift = turn % (len(active) - 1) if len(active) > 1 else 0
        replicas = cache.get((step, shift))
        if replicas is None:
            leader, others = active[step], active[step + 1 :] + active[:step]
            candidates = others[shift:] + others[:shift] + inactive
            replicas = cache[step, shift] = _spread(leader, candidates, replication_factor)
        placed.append(replicas)
    return placed


def takers(image: Image, count: int) -> list[Broker]:
    """The brokers for new replicas: not those being drained, unless there are too few others."""
    staying = [broker for broker in image.brokers.values() if int(broker.id) not in drained_nodes(image)]
    return staying if len(staying) >= count else list(image.brokers.values())


def drained_nodes(image: Image) -> set[int]:
    """The brokers that are being drained."""
    return {
        int(node_id)
        for node_id in image.brokers
        if image.config_of(Resource(ResourceType.BROKER, str(node_id))).get(BROKER_DRAINED.name) == "true"
    }


def _ring(brokers: list[Broker]) -> list[Broker]:
    """All brokers once, neighbours in different racks as far as possible."""
    racks: dict[str, list[Broker]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.rack or "", broker.id)):
        racks.setdefault(broker.rack or "", []).append(broker)
    return [broker for row in zip_longest(*racks.values()) for broker in row if broker is not None]


def _spread(leader: Broker, candidates: list[Broker], count: int) -> tuple[int, ...]:
    """The leader and the first candidates, those in unused racks first."""
    chosen = [leader]
    racks = {leader.rack}
    while len(chosen) < count:
        # Without racks every broker is in the rack None, and the first candidate is as good as any.
        fresh = next((broker for broker in candidates if broker.rack not in racks), None)
        if fresh is None:
            racks.clear()
            fresh = candidates[0]
        candidates.remove(fresh)
        chosen.append(fresh)
        racks.add(fresh.rack)
    return tuple(broker.id for broker in chosen)
