"""An even share for every node: plans never lose a replica, end, are even, and leave nothing for a second one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.admin.balance import BYTES_APART_MIN, plan_balance, plan_drain, plan_leaders, stuck_on_drained
from millpond.admin.placement import PartitionPlacement, Placement, PlannedMove, seconds_at
from millpond.base.ids import TopicPartition

MB = 1 << 20


def after(placement: Placement, moves: list[PlannedMove]) -> Placement:
    """The load once the moves have ended and the first replicas lead."""
    partitions = dict(placement.partitions)
    for move in moves:
        held = partitions[move.partition]
        partitions[move.partition] = PartitionPlacement(move.target, move.target, move.target[0], held.size_bytes)
    return replace(placement, partitions=partitions)


def counts(placement: Placement) -> Counter[int]:
    held = Counter(node for each in placement.partitions.values() for node in each.target)
    return Counter({node: held[node] for node in placement.racks if node not in placement.drained})


def leads(placement: Placement) -> Counter[int]:
    led = Counter(each.target[0] for each in placement.partitions.values())
    return Counter({node: led[node] for node in placement.racks if node not in placement.drained})


def apart(amounts: Counter[int]) -> int:
    return max(amounts.values()) - min(amounts.values())


def racks_of(placement: Placement, replicas: tuple[int, ...]) -> int:
    return len({placement.racks.get(node, "") for node in replicas})


@st.composite
def loads(draw: st.DrawFn, *, racks: bool = False) -> Placement:
    nodes = list(range(1, draw(st.integers(1, 7)) + 1))
    names = {node: f"r{draw(st.integers(1, 3))}" if racks else "" for node in nodes}
    partitions = {}
    for index in range(draw(st.integers(0, 25))):
        factor = draw(st.integers(1, min(3, len(nodes))))
        # Few holders, as where nodes came later; all in sync, or none of them would move.
        holders = draw(st.permutations(nodes[: max(factor, draw(st.integers(1, len(nodes))))]))[:factor]
        size = draw(st.sampled_from([0, 1, 10 * MB, 100 * MB, 1000 * MB]))
        name = TopicPartition(draw(st.sampled_from("ab")), index)
        partitions[name] = PartitionPlacement(tuple(holders), tuple(holders), holders[0], size)
    return Placement(names, partitions)


def check_moves(placement: Placement, moves: list[PlannedMove]) -> None:
    assert len({move.partition for move in moves}) == len(moves)
    for move in moves:
        held = placement.partitions[move.partition]
        assert len(move.target) == len(held.replicas) == len(set(move.target)), "no replica is lost"
        assert move.before == held.replicas != move.target, "a move changes something"
        assert set(move.target) <= set(placement.racks), "to nodes that are there"
        assert racks_of(placement, move.target) >= racks_of(placement, held.replicas)


@settings(max_examples=60, deadline=None)
@given(loads())
def test_every_node_gets_its_share_and_a_second_plan_is_empty(placement: Placement) -> None:
    moves = plan_balance(placement)
    check_moves(placement, moves)
    balanced = after(placement, moves)
    assert apart(counts(balanced)) <= 1
    assert plan_balance(balanced) == []


@settings(max_examples=60, deadline=None)
@given(loads(racks=True))
def test_racks_come_first_and_nodes_of_one_rack_hold_equally_many(placement: Placement) -> None:
    moves = plan_balance(placement)
    check_moves(placement, moves)
    balanced = after(placement, moves)
    racks = len(set(placement.racks.values()))
    for each in balanced.partitions.values():
        assert racks_of(placement, each.replicas) == min(racks, len(each.replicas))
    for rack in set(placement.racks.values()):
        held = counts(balanced)
        assert apart(Counter({node: held[node] for node, name in placement.racks.items() if name == rack})) <= 1
    assert plan_balance(balanced) == []


@settings(max_examples=50, deadline=None)
@given(loads(racks=True), st.data())
def test_nothing_stays_on_a_drained_node_that_others_can_hold(placement: Placement, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(placement.racks)), max_size=2))
    # One of them may be dead.
    dead = set(data.draw(st.permutations(sorted(gone)))[:1]) if data.draw(st.booleans()) else set()
    placement = Placement(
        {node: rack for node, rack in placement.racks.items() if node not in dead},
        {
            name: replace(
                held,
                in_sync=tuple(node for node in held.replicas if node not in dead),
                leader=next((node for node in held.replicas if node not in dead), -1),
            )
            for name, held in placement.partitions.items()
        },
        frozenset(gone),
    )
    moves = plan_balance(placement)
    left = set(stuck_on_drained(placement, moves))
    for name, held in placement.partitions.items():
        if set(held.replicas) & gone and held.leader >= 0:
            assert (name not in left) == (len(held.replicas) <= len(set(placement.racks) - gone))
    for move in moves:
        assert not (set(move.adding) & gone)
        assert len(set(move.target)) == len(move.before)


@settings(max_examples=50, deadline=None)
@given(loads(), st.lists(st.sampled_from([0.0, 0.0, 1e3, 1e6, 5e6]), min_size=25, max_size=25))
def test_leaders_change_and_nothing_is_copied(placement: Placement, amounts: list[float]) -> None:
    traffic = dict(zip(placement.partitions, amounts, strict=False))
    moves = plan_leaders(placement, traffic)
    for move in moves:
        assert (move.adding, sorted(move.target)) == ((), sorted(move.before))
    assert plan_leaders(after(placement, moves), traffic) == []

    def busiest(one: Placement) -> float:
        sums: Counter[int] = Counter()
        for name, held in one.partitions.items():
            sums[held.replicas[0]] += round(traffic[name])
        return max(sums.values(), default=0)

    assert busiest(after(placement, moves)) <= busiest(placement)


def cluster(*held: PartitionPlacement, nodes: int) -> Placement:
    return Placement(
        dict.fromkeys(range(1, nodes + 1), ""), {TopicPartition("a", index): each for index, each in enumerate(held)}
    )


def full(*replicas: int, size: int = 100 * MB) -> PartitionPlacement:
    return PartitionPlacement(replicas, replicas, replicas[0], size)


def test_an_empty_node_gets_a_quarter_and_only_that_is_copied() -> None:
    placement = cluster(*(full(*((1, 2, 3) * 2)[at % 3 : at % 3 + 3]) for at in range(12)), nodes=4)
    moves = plan_balance(placement)
    balanced = after(placement, moves)
    assert counts(balanced) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert leads(balanced) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(move.bytes_to_copy for move in moves) == 9 * 100 * MB
    assert all(move.adding in ((4,), ()) for move in moves)
    # Node 4 takes 900 MB; who gives them gives less.
    assert seconds_at(moves, 50 * MB) == 18


def test_bytes_are_evened_where_numbers_are_even_already() -> None:
    large, small = full(1, size=1000 * MB), full(2, size=BYTES_APART_MIN)
    moves = plan_balance(cluster(large, large, small, small, nodes=2))
    balanced = after(cluster(large, large, small, small, nodes=2), moves)
    held = Counter[int]()
    for each in balanced.partitions.values():
        held[each.replicas[0]] += each.size_bytes
    assert held[1] == held[2]
    assert counts(balanced) == {1: 2, 2: 2}


@pytest.mark.parametrize(
    "held",
    [
        PartitionPlacement(
            (1, 2, 3), (1, 2), 1, MB
        ),  # one of its replicas is out of sync: the move would wait for it
        PartitionPlacement((1, 2), (), -1, MB),  # nobody leads it
    ],
)
def test_what_is_not_well_stays_as_it_is(held: PartitionPlacement) -> None:
    placement = cluster(held, held, held, nodes=4)
    assert plan_balance(placement) == []


def test_what_is_under_way_counts_as_there_and_is_waited_for() -> None:
    moving = PartitionPlacement((2, 3, 1), (1, 3), 1, MB, adding=(2,), removing=(1,))
    placement = cluster(moving, full(1, 2), full(3, 1), nodes=3)
    (move,) = plan_balance(placement)
    assert (move.before, move.target, move.adding) == ((3, 1), (2, 3), (2,))


def test_replicas_of_a_node_that_is_away_stay_there() -> None:
    placement = Placement(
        {1: "", 2: ""}, {TopicPartition("a", at): PartitionPlacement((3, 1), (1,), 1, MB) for at in range(4)}
    )
    assert plan_balance(placement) == []


def test_nodes_that_died_together_are_emptied_together_and_not_one_by_one() -> None:
    left = PartitionPlacement((1, 2, 3), (3,), 3, MB)
    partition = TopicPartition("a", 0)
    placement = Placement(dict.fromkeys((3, 4, 5), ""), {partition: left}, frozenset({1}))
    assert (plan_drain(placement), stuck_on_drained(placement, [])) == ([], [partition])
    moves = plan_drain(replace(placement, drained=frozenset({1, 2})))
    assert [sorted(move.target) for move in moves] == [[3, 4, 5]]


def test_the_busy_partitions_of_one_node_are_led_by_several() -> None:
    placement = cluster(*(full(1, 2, 3) for _ in range(6)), nodes=3)
    traffic = {TopicPartition("a", at): amount for at, amount in enumerate((9e6, 5e6, 4e6, 0, 0, 0))}
    balanced = after(placement, plan_leaders(placement, traffic))
    led = Counter[int]()
    for name, held in balanced.partitions.items():
        led[held.replicas[0]] += round(traffic[name])
    assert sorted(led.values()) == [4e6, 5e6, 9e6]
    assert leads(balanced) == {1: 2, 2: 2, 3: 2}


@example(placement=cluster(full(1, 2), full(1, 2), full(1, 3), full(1, 3), nodes=3))
@settings(max_examples=50, deadline=None)
@given(loads())
def test_no_assignment_of_leaders_is_more_even_than_the_plan(placement: Placement) -> None:
    """Checked against a plain search for chains: no node could pass one on to one that leads two less."""
    balanced = after(placement, plan_leaders(placement))
    led = leads(balanced)
    for start in placement.racks:
        seen, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            for held in balanced.partitions.values():
                if held.replicas[0] == node:
                    waiting += [each for each in held.replicas if each not in seen]
                    seen.update(held.replicas)
        assert all(led[start] - led[node] <= 1 for node in seen)
