"""Plans of moves, as pure functions of the placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millpond.admin.errors import Refused
from millpond.base.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionPlacement:
    """A partition: its replicas, the preferred leader first, and their size."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    size_bytes: int = 0
    adding: tuple[int, ...] = ()
    """Replicas that a current move adds."""
    removing: tuple[int, ...] = ()
    """Replicas that it removes."""

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def before(self) -> tuple[int, ...]:
        """The replicas before the current move."""
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the current move."""
        return tuple(each for each in self.replicas if each not in self.removing)


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of all partitions."""

    racks: Mapping[int, str]
    """The rack of every live node."""
    partitions: Mapping[TopicPartition, PartitionPlacement]
    drained: frozenset[int] = frozenset()
    """Drained nodes."""

    def of_topic(self, topic: str) -> dict[TopicPartition, PartitionPlacement]:
        return {each: held for each, held in self.partitions.items() if each.topic == topic}


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A partition that should move."""

    partition: TopicPartition
    before: tuple[int, ...]
    target: tuple[int, ...]
    size_bytes: int = 0

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(each for each in self.target if each not in self.before)

    @property
    def bytes_to_copy(self) -> int:
        return self.size_bytes * len(self.adding)


def seconds_at(moves: Iterable[PlannedMove], rate: int) -> float:
    """The minimum duration at this rate of bytes per second for each node, in and out: that of the busiest node."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for move in moves:
        sent[move.before[0]] += move.bytes_to_copy
        for node in move.adding:
            received[node] += move.size_bytes
    return max((*sent.values(), *received.values()), default=0) / rate


def waited_for(placement: Placement, moves: Iterable[PlannedMove]) -> list[int]:
    """The nodes that are down and that these moves would wait for."""
    return sorted({node for move in moves for node in move.target if node not in placement.racks})


def outdated(moves: Iterable[PlannedMove], then: Placement, now: Placement) -> list[PlannedMove]:
    """The moves of an older plan that no longer fit the current placement.

    The partition is gone or has other replicas, or a target node is gone or drained.
    """

    def fits(move: PlannedMove) -> bool:
        before, after = then.partitions.get(move.partition), now.partitions.get(move.partition)
        if before is None or after is None:
            return False
        if (before.replicas, before.adding, before.removing) != (after.replicas, after.adding, after.removing):
            return False
        return all(node in now.racks and (node not in now.drained or node in then.drained) for node in move.adding)

    return [move for move in moves if not fits(move)]


def plan_move(placement: Placement, topic: str, indexes: Collection[int], target: Sequence[int]) -> list[PlannedMove]:
    """Moves these partitions of a topic, or all of them, to these nodes."""
    held = placement.of_topic(topic)
    for index in indexes:
        if TopicPartition(topic, index) not in held:
            raise Refused(f"{topic} has no partition {index}: it has 0 to {len(held) - 1}.")
    _check_nodes(placement, target)
    return [
        PlannedMove(partition, each.before, tuple(target), each.size_bytes)
        for partition, each in held.items()
        if (not indexes or partition.partition in indexes) and (each.is_moving or each.replicas != tuple(target))
    ]


def _check_nodes(placement: Placement, nodes: Sequence[int]) -> None:
    if len(set(nodes)) < len(nodes):
        raise Refused(f"A node is named twice: {','.join(map(str, nodes))}.")
    if unknown := [each for each in nodes if each not in placement.racks]:
        raise Refused(f"There is no node {unknown[0]} now; there are {_listed(placement.racks)}.")


def _listed(nodes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def plan_factor(placement: Placement, topics: Collection[str], factor: int) -> list[PlannedMove]:
    """Gives every partition of these topics this many replicas: new ones go to the nodes with the fewest, in other
    racks.

    Removal starts with the last replicas, those out of sync first; the leader stays.
    """
    candidates = [node for node in placement.racks if node not in placement.drained]
    if factor > len(candidates):
        raise Refused(
            f"{factor} replicas need as many nodes, and {len(candidates)} are there: {_listed(candidates)}."
        )
    counts = Counter(node for held in placement.partitions.values() for node in held.replicas)
    moves = []
    for partition, held in placement.partitions.items():
        if partition.topic not in topics:
            continue
        target = list(held.target)
        while len(target) > factor:
            target.remove(max(target, key=lambda each: _usefulness(held, each)))
        while len(target) < factor:
            racks = {placement.racks.get(each) for each in target}
            free = [each for each in candidates if each not in target]
            node = min(free, key=lambda each: (placement.racks[each] in racks, counts[each], each))
            target.append(node)
            counts[node] += 1
        if tuple(target) != held.replicas:
            moves.append(PlannedMove(partition, held.before, tuple(target), held.size_bytes))
    return moves


def _usefulness(held: PartitionPlacement, node: int) -> tuple[bool, bool, int]:
    """The larger, the sooner it is removed."""
    return node not in held.in_sync, node != held.leader, held.replicas.index(node)
