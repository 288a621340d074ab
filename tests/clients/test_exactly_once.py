"""Read, process, write: every record comes out exactly once, however often workers and their node are killed.

`tests/campaigns/exactly_once.py` is the full-length version.
"""

from __future__ import annotations

import pytest

from support.exactly_once import KEYS, NO_NUMBER, NODE_SETTINGS, PARTITIONS, Plan, check_copy, run

PLANS = {
    "one worker": Plan(8_000, worker_kills=3, node_kills=2, seed=1),
    "two workers of a classic group": Plan(4_000, worker_kills=2, node_kills=1, workers=2, protocol="range", seed=2),
    "two workers that hand over one by one": Plan(
        4_000, worker_kills=2, node_kills=1, workers=2, protocol="cooperative-sticky", seed=3
    ),
    "two workers of the new protocol": Plan(
        4_000, worker_kills=2, node_kills=1, workers=2, protocol="consumer", seed=4
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_copy_has_every_record_once_and_in_order(make_node, plan):
    tally = run(make_node(NODE_SETTINGS), plan)
    assert tally.copied == plan.records
    assert (tally.worker_kills, tally.node_kills) == (plan.worker_kills, plan.node_kills)
    # Without an abort, read_committed would not have been tested.
    assert tally.aborted > 0


RECORDS = 4 * KEYS


def copy_of(numbers):
    seen = [[] for _ in range(PARTITIONS)]
    for number in numbers:
        seen[number % KEYS % PARTITIONS].append((number % KEYS, number))
    return seen


def test_a_true_copy_passes_the_check():
    check_copy(RECORDS, copy_of(range(RECORDS)))


FAULTS = {
    "missing": copy_of(range(1, RECORDS)),
    "twice": copy_of([*range(RECORDS), RECORDS - 1]),
    "never written": copy_of(range(RECORDS + 1)),
    "out of order": copy_of([KEYS, 0, *(each for each in range(1, RECORDS) if each != KEYS)]),
    "aborted": [[(0, NO_NUMBER)], *copy_of(range(RECORDS))[1:]],
}


@pytest.mark.parametrize(("fault", "seen"), FAULTS.items(), ids=FAULTS)
def test_the_check_finds_every_fault(fault, seen):
    with pytest.raises(AssertionError, match=fault):
        check_copy(RECORDS, seen)
