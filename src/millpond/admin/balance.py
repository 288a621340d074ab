"""Balances a cluster: which partitions should have which replicas, and which of them should lead.

A pure function of the placement. In this order: drained nodes become empty; replicas of a partition spread over as
many racks as possible; nodes hold equally many replicas, to within one, and then about equally many bytes; nodes lead
equally much. A later goal never undoes an earlier one, and each step lowers one sum: so it terminates, and a plan
made from its own result is empty. A partition that is moving, has no leader or has a replica out of sync stays as it
is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millpond.admin.placement import PartitionPlacement, Placement, PlannedMove
from millpond.base.ids import TopicPartition

BYTES_APART: Final = 0.1
"""Nodes whose bytes are within this fraction of the mean count as equal."""
BYTES_APART_MIN: Final = 16 << 20
LOAD_APART: Final = 0.2
"""Leaders are changed if a node exceeds the mean by this fraction."""
GAIN_MIN: Final = 0.02
"""And as long as each change gains this fraction of the mean."""
NEIGHBOURS: Final = 8
"""Candidates of about the right size that are considered for an exchange."""


def plan_balance(placement: Placement, traffic: Mapping[TopicPartition, float] | None = None) -> list[PlannedMove]:
    """The moves that balance the cluster. `traffic` is the write rate of each partition, in bytes per second."""
    table = _Table(placement)
    table.empty_drained()
    while table.spread_over_racks() or table.level_counts() or table.level_bytes():
        pass
    table.level_leaders(traffic or {})
    return table.moves()


def plan_drain(placement: Placement) -> list[PlannedMove]:
    """The moves that empty the drained nodes, as far as the others can take it; nothing else moves."""
    table = _Table(placement)
    table.empty_drained()
    return [move for move in table.moves() if set(move.before) & placement.drained]


def plan_leaders(placement: Placement, traffic: Mapping[TopicPartition, float] | None = None) -> list[PlannedMove]:
    """Changes of leaders only: the same replicas in another order, without copying."""
    table = _Table(placement)
    table.level_leaders(traffic or {})
    return table.moves()


def stuck_on_drained(placement: Placement, moves: Iterable[PlannedMove]) -> list[TopicPartition]:
    """The partitions that keep a replica on a drained node, because there are too few others."""
    after = {partition: held.target for partition, held in placement.partitions.items()}
    after |= {move.partition: move.target for move in moves}
    return sorted(partition for partition, replicas in after.items() if set(replicas) & placement.drained)


def unled(placement: Placement, moves: Iterable[PlannedMove]) -> list[TopicPartition]:
    """The partitions that do not move, but whose first replica could lead and does not."""
    moved = {move.partition for move in moves}
    return sorted(
        partition
        for partition, held in placement.partitions.items()
        if partition not in moved
        and held.leader >= 0
        and held.leader != held.replicas[0]
        and held.replicas[0] in held.in_sync
        and held.replicas[0] in placement.racks
    )


@dataclass(frozen=True, slots=True)
class Share:
    """The replicas, bytes and leaders of a node."""

    replicas: int = 0
    size_bytes: int = 0
    leads: int = 0


def shares(placement: Placement, moves: Iterable[PlannedMove] | None = None) -> dict[int, Share]:
    """The share of every live node: now, or after these moves, when all first replicas lead."""
    targets = None if moves is None else {move.partition: move.target for move in moves}
    shares = dict.fromkeys(sorted(placement.racks), Share())
    for partition, held in placement.partitions.items():
        replicas = held.before if targets is None else targets.get(partition, held.target)
        leader = held.leader if targets is None else replicas[0]
        for node in replicas:
            if node in shares:
                had = shares[node]
                shares[node] = Share(had.replicas + 1, had.size_bytes + held.size_bytes, had.leads + (node == leader))
    return shares


class _Table:
    """The placement after the changes so far."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.nodes = sorted(node for node in placement.racks if node not in placement.drained)
        """Nodes that may get replicas."""
        self._replicas = {partition: list(held.target) for partition, held in placement.partitions.items()}
        self._loose = {each for each, held in placement.partitions.items() if self._is_loose(held)}
        self._on: dict[int, dict[TopicPartition, None]] = {node: {} for node in self.nodes}
        """The partitions of each node that may move."""
        self._counts: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._topics: Counter[tuple[int, str]] = Counter()
        for partition, replicas in self._replicas.items():
            for node in replicas:
                self._count(partition, node, 1)

    def _is_loose(self, held: PartitionPlacement) -> bool:
        there = [node for node in held.replicas if node not in self._placement.drained]
        return not held.is_moving and held.leader >= 0 and set(there) <= set(held.in_sync)

    def _size(self, partition: TopicPartition) -> int:
        return self._placement.partitions[partition].size_bytes

    def _count(self, partition: TopicPartition, node: int, change: int) -> None:
        self._counts[node] += change
        self._bytes[node] += change * self._size(partition)
        self._topics[node, partition.topic] += change
        if partition in self._loose and node in self._on:
            if change > 0:
                self._on[node][partition] = None
            else:
                self._on[node].pop(partition, None)

    def _shift(self, partition: TopicPartition, source: int, target: int) -> None:
        replicas = self._replicas[partition]
        replicas[replicas.index(source)] = target
        self._count(partition, source, -1)
        self._count(partition, target, 1)

    def _racks(self, replicas: Iterable[int]) -> int:
        return len({self._placement.racks.get(node, "") for node in replicas})

    def _may_shift(self, partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self._replicas[partition]
        if target in replicas:
            return False
        after = [target if node == source else node for node in replicas]
        return self._racks(after) >= self._racks(replicas)

    def moves(self) -> list[PlannedMove]:
        """The moves, the smallest first; moves under way already are included."""
        moves = []
        for partition, held in self._placement.partitions.items():
            target = tuple(self._replicas[partition])
            if held.is_moving or target != held.replicas:
                moves.append(PlannedMove(partition, held.before, target, held.size_bytes))
        return sorted(moves, key=lambda move: (bool(move.adding), move.bytes_to_copy, move.partition))

    # Replicas.

    def empty_drained(self) -> None:
        for partition in sorted(self._loose):
            replicas = self._replicas[partition]
            for source in [node for node in replicas if node in self._placement.drained]:
                free = [node for node in self.nodes if node not in replicas]
                if not free:
                    continue
                others = [node for node in replicas if node != source]
                target = min(
                    free,
                    key=lambda node, others=others: (  # type: ignore[misc]
                        -self._racks([*others, node]),
                        self._counts[node],
                        self._bytes[node],
                        node,
                    ),
                )
                self._shift(partition, source, target)
                if replicas[0] == target and len(replicas) > 1:
                    # A node that has its records already can lead at once.
                    replicas.append(replicas.pop(0))

    def spread_over_racks(self) -> bool:
        """Moves a replica from a rack with several of its partition to one with none; whether it did."""
        racks = {self._placement.racks[node] for node in self.nodes}
        changed = False
        for partition in sorted(self._loose) if len(racks) > 1 else ():
            replicas = self._replicas[partition]
            while True:
                taken = Counter(self._placement.racks.get(node, "") for node in replicas)
                sources = [node for node in replicas if taken[self._placement.racks.get(node, "")] > 1]
                free = [node for node in self.nodes if self._placement.racks[node] not in taken]
                if not sources or not free:
                    break
                source = max(sources, key=lambda node: (self._counts[node], replicas.index(node)))
                self._shift(partition, source, min(free, key=lambda node: (self._counts[node], node)))
                changed = True
        return changed

    def level_counts(self) -> bool:
        """Moves a replica from a node that holds at least two more than another; whether it did."""
        changed = False
        while any(self._shift_one(source, target) for source, target in self._pairs(self._counts, 2)):
            changed = True
        return changed

    def _pairs(self, amounts: Mapping[int, float], apart: float) -> Iterator[tuple[int, int]]:
        """Pairs of nodes that differ this much, the largest difference first."""
        order = sorted(self.nodes, key=lambda node: (amounts[node], node))
        for source in reversed(order):
            for target in order:
                if amounts[source] - amounts[target] < apart:
                    break
                yield source, target

    def _shift_one(self, source: int, target: int) -> bool:
        """Move the partition that best evens out the two nodes' bytes, from the topic most uneven between them."""
        counts, held = self._counts, self._bytes
        share = max(held[source] - held[target], 0) / (counts[source] - counts[target])
        best = min(
            (
                (
                    self._topics[target, partition.topic] - self._topics[source, partition.topic],
                    abs(self._size(partition) - share),
                    partition,
                )
                for partition in self._on[source]
                if self._may_shift(partition, source, target)
            ),
            default=None,
        )
        if best is None:
            return False
        self._shift(best[2], source, target)
        return True

    def level_bytes(self) -> bool:
        """Moves or exchanges a replica between a node with many bytes and one with few; whether it did."""
        if not self.nodes:
            return False
        mean = sum(self._bytes[node] for node in self.nodes) / len(self.nodes)
        apart = max(mean * BYTES_APART, BYTES_APART_MIN)
        changed = False
        while any(
            self._exchange(source, target)
            for source, target in self._pairs(self._bytes, apart)
            if self._bytes[source] > mean + apart or self._bytes[target] < mean - apart
        ):
            changed = True
        return changed

    def _exchange(self, source: int, target: int) -> bool:
        gap = self._bytes[source] - self._bytes[target]
        back: list[tuple[int, TopicPartition | None]] = sorted(
            (self._size(partition), partition)
            for partition in self._on[target]
            if self._may_shift(partition, target, source)
        )
        if self._counts[source] > self._counts[target]:
            back.insert(0, (0, None))
        best: tuple[float, int, TopicPartition, TopicPartition | None] | None = None
        for partition in self._on[source]:
            if not self._may_shift(partition, source, target):
                continue
            size = self._size(partition)
            at = bisect_left(back, size - gap / 2, key=lambda each: each[0])
            for other_size, other in back[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS]:
                less = size - other_size
                if gap / 8 <= less <= gap * 7 / 8:
                    # Among good enough candidates, copy the fewest bytes.
                    cost = round(abs(less - gap / 2) * 8 / gap), size + other_size
                    if best is None or cost < best[:2]:
                        best = (*cost, partition, other)
        if best is None:
            return False
        self._shift(best[2], source, target)
        if best[3] is not None:
            self._shift(best[3], target, source)
        return True

    # Leaders.

    def level_leaders(self, traffic: Mapping[TopicPartition, float]) -> None:
        """Weights by traffic; partitions without traffic count equally."""
        leaders = _Leaders(
            {each: self._replicas[each] for each in sorted(self._loose)},
            self.nodes,
            [replicas[0] for each, replicas in self._replicas.items() if each not in self._loose and replicas],
            traffic,
        )
        leaders.level_load()
        leaders.level_counts()


class _Leaders:
    """The leaders; the leader is the first replica."""

    def __init__(
        self,
        replicas: Mapping[TopicPartition, list[int]],
        nodes: Sequence[int],
        fixed: Sequence[int],
        traffic: Mapping[TopicPartition, float],
    ) -> None:
        self._replicas = replicas
        self._nodes = nodes
        self._traffic = traffic
        self._led: dict[int, dict[TopicPartition, None]] = {node: {} for node in nodes}
        for partition, each in replicas.items():
            if each[0] in self._led:
                self._led[each[0]][partition] = None
        others = Counter(fixed)
        self._counts = Counter({node: len(led) + others[node] for node, led in self._led.items()})
        self._loads = {node: sum(traffic.get(each, 0.0) for each in led) for node, led in self._led.items()}

    def _candidates(self, partition: TopicPartition) -> list[int]:
        return [node for node in self._replicas[partition][1:] if node in self._led]

    def _hand_over(self, partition: TopicPartition, target: int) -> None:
        replicas = self._replicas[partition]
        source = replicas[0]
        at = replicas.index(target)
        replicas[0], replicas[at] = target, source
        weight = self._traffic.get(partition, 0.0)
        del self._led[source][partition]
        self._led[target][partition] = None
        self._counts[source] -= 1
        self._counts[target] += 1
        self._loads[source] -= weight
        self._loads[target] += weight

    def level_load(self) -> None:
        mean = sum(self._loads.values()) / max(len(self._nodes), 1)
        # Each change lowers the sum of squares; the bound guards against floats of very different sizes.
        for _ in range(2 * len(self._replicas)):
            busiest = max(self._nodes, key=lambda node: (self._loads[node], -node), default=None)
            if busiest is None or self._loads[busiest] <= mean * (1 + LOAD_APART) or not self._relieve(busiest, mean):
                return

    def _relieve(self, busiest: int, mean: float) -> bool:
        """Hands over or exchanges partitions so that the busier of both nodes becomes least busy."""
        before = self._loads[busiest]
        best: tuple[float, TopicPartition, int, TopicPartition | None] | None = None
        for partition in self._led[busiest]:
            weight = self._traffic.get(partition, 0.0)
            for target in self._candidates(partition) if weight else ():
                for less, other in self._returns(weight, target, busiest):
                    after = max(before - less, self._loads[target] + less)
                    if after < before - mean * GAIN_MIN and (best is None or after < best[0]):
                        best = after, partition, target, other
        if best is None:
            return False
        _, partition, target, other = best
        self._hand_over(partition, target)
        if other is not None:
            self._hand_over(other, busiest)
        return True

    def _returns(self, weight: float, source: int, target: int) -> Iterator[tuple[float, TopicPartition | None]]:
        """What could be exchanged for a partition of this weight, and how much lighter the giver becomes."""
        yield weight, None
        for other in self._led[source]:
            back = self._traffic.get(other, 0.0)
            if 0 < back < weight and target in self._replicas[other]:
                yield weight - back, other

    def level_counts(self) -> None:
        """Moves leaders along chains: the first node leads one less, the last one more, the others as many as
        before."""
        while any(self._pass_on(node) for node in sorted(self._nodes, key=lambda node: (-self._counts[node], node))):
            pass

    def _pass_on(self, start: int) -> bool:
        came: dict[int, tuple[int, TopicPartition]] = {}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for partition in self._led[node]:
                if self._traffic.get(partition):
                    continue
                for target in self._candidates(partition):
                    if target in came or target == start:
                        continue
                    came[target] = node, partition
                    if self._counts[target] <= self._counts[start] - 2:
                        self._pass_along(came, start, target)
                        return True
                    waiting.append(target)
        return False

    def _pass_along(self, came: Mapping[int, tuple[int, TopicPartition]], start: int, end: int) -> None:
        node = end
        while node != start:
            source, partition = came[node]
            self._hand_over(partition, node)
            node = source
