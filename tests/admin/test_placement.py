"""Plans of moves: who goes where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.admin.errors import Refused
from millpond.admin.placement import PartitionPlacement, Placement, outdated, plan_factor, plan_move, waited_for
from millpond.base.ids import TopicPartition


def placement(*replicas: tuple[int, ...], racks: dict[int, str] | None = None, nodes: int = 4) -> Placement:
    """Partitions of topic a with these replicas, 100 bytes each."""
    return Placement(
        racks or dict.fromkeys(range(1, nodes + 1), ""),
        {
            TopicPartition("a", index): PartitionPlacement(each, each, each[0], 100)
            for index, each in enumerate(replicas)
        },
    )


def test_only_what_is_elsewhere_moves_and_says_what_it_costs() -> None:
    (move,) = plan_move(placement((1, 2), (3, 4)), "a", (), (3, 4))
    assert (move.partition.partition, move.adding, move.bytes_to_copy) == (0, (3, 4), 200)
    assert plan_move(placement((1, 2), (3, 4)), "a", (1,), (3, 4)) == []
    for indexes, target in (((7,), (1, 2)), ((), (1, 9)), ((), (1, 1))):
        with pytest.raises(Refused):
            plan_move(placement((1, 2)), "a", indexes, target)


def test_more_replicas_go_where_there_are_fewest_and_to_other_racks() -> None:
    moves = plan_factor(placement((1, 2), (2, 1), (3, 1)), ["a"], 3)
    assert [move.target for move in moves] == [(1, 2, 4), (2, 1, 3), (3, 1, 4)]
    racks = {1: "x", 2: "x", 3: "y"}
    assert plan_factor(placement((1,), racks=racks), ["a"], 2)[0].target == (1, 3)
    with pytest.raises(Refused):
        plan_factor(placement((1,)), ["a"], 5)


def test_a_plan_names_the_offline_nodes_it_waits_for() -> None:
    there = placement((1, 9), (1, 2))
    moves = plan_factor(there, ["a"], 3)
    assert [9 in move.target for move in moves] == [True, False]
    assert waited_for(there, moves) == [9]


def test_fewer_replicas_keep_the_leader_and_the_isr() -> None:
    held = PartitionPlacement((1, 2, 3), (2, 3), 3)
    cluster = Placement(dict.fromkeys((1, 2, 3), ""), {TopicPartition("a", 0): held})
    assert plan_factor(cluster, ["a"], 2)[0].target == (2, 3)
    assert plan_factor(cluster, ["a"], 1)[0].target == (3,)


def test_a_plan_fits_while_its_partitions_are_where_they_were() -> None:
    then = placement((1, 2), (1, 2), (3, 4))
    moves = plan_move(then, "a", (0, 1), (3, 4))
    # Others move, and all of them grow: that is nothing to it.
    grown = {name: replace(held, size_bytes=held.size_bytes * 9) for name, held in then.partitions.items()}
    grown[TopicPartition("a", 2)] = PartitionPlacement((1, 2), (1,), 1, 5)
    assert outdated(moves, then, replace(then, partitions=grown)) == []
    gone = {name: held for name, held in then.partitions.items() if name.partition != 1}
    assert outdated(moves, then, replace(then, partitions=gone)) == [moves[1]]
    elsewhere = {
        **then.partitions,
        TopicPartition("a", 0): PartitionPlacement((1, 2, 3), (1, 2), 1, 100, adding=(3,)),
    }
    assert outdated(moves, then, replace(then, partitions=elsewhere)) == [moves[0]]
    assert outdated(moves, then, replace(then, drained=frozenset({4}))) == moves
    assert outdated(moves, replace(then, drained=frozenset({4})), replace(then, drained=frozenset({4}))) == []
    assert outdated(moves, then, replace(then, racks={1: "", 2: "", 3: ""})) == moves
