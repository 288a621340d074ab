"""Where records go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import RoundRobin, by_key, salted, unsalted
from millpond.wire.partitioner import partition_for_key


@given(st.binary(), st.integers(1, 50))
def test_a_key_has_one_partition(key: bytes, partitions: int) -> None:
    assert by_key(key, partitions) == partition_for_key(key, partitions) < partitions


def test_without_a_key_all_partitions_are_used() -> None:
    assert {by_key(None, 4) for _ in range(200)} == {0, 1, 2, 3}


def test_round_robin_is_even() -> None:
    turn = RoundRobin()
    assert Counter(turn(b"same", 4) for _ in range(40)) == {0: 10, 1: 10, 2: 10, 3: 10}


@given(st.text(), st.integers(1, 20), st.text())
def test_salt_can_be_taken_off_and_is_stable_where_asked(key: str, buckets: int, by: str) -> None:
    assert unsalted(salted(key, buckets)) == key
    assert salted(key, buckets, by=by) == salted(key, buckets, by=by.encode())


def test_salt_spreads_over_all_buckets() -> None:
    assert {salted("hot", 8) for _ in range(500)} == {f"hot#{n}" for n in range(8)}
    assert len({salted("hot", 8, by=str(n)) for n in range(500)}) == 8


def test_a_key_without_salt_is_left_alone() -> None:
    assert unsalted("plain") == "plain"
    assert unsalted("a#b") == "a#b"
    with pytest.raises(ValueError, match="one bucket"):
        salted("hot", 0)
