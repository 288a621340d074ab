"""A log too small for an entry in its indexes is opened without them, and is what it would have been with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.log.limits import LogLimits
from millpond.sim.world.disk import SimDisk

LIMITS = LogLimits(segment_bytes=3000, index_interval_bytes=400)
ENDS = st.sampled_from(["none", "clean", "kill", "power"])
STEPS = st.lists(st.tuples(ENDS, st.integers(0, 300)), min_size=1, max_size=12)


def index_files(harness: Any) -> dict[str, bytes]:
    names = [name for name in harness.disk.list(harness.partition) if name.endswith("index")]
    return {name: harness.disk.read(f"{harness.partition}/{name}") for name in names}


def ended(harness: Any, store: Any, log: Any, how: str) -> tuple[Any, Any]:
    """The same log in the next life."""
    if how == "none":
        return store, log
    if how == "clean":
        store.close()
    else:
        harness.sync(log)
        if how == "power":
            harness.disk.crash()
        else:
            log.abandon()
            store._lock.release()
    return harness.open()


@given(STEPS)
def test_lives_in_between_change_nothing(make_pond: Callable[..., Any], steps: list[tuple[str, int]]) -> None:
    mortal, steady = (make_pond(disk=SimDisk(seed=1), limits=LIMITS) for _ in range(2))
    simulation, one = mortal.open(), steady.open()
    for number, (end, size) in enumerate(steps):
        simulation = ended(mortal, *simulation, end)
        for harness, (_, log) in ((mortal, simulation), (steady, one)):
            harness.now_ms += 7
            harness.append(log, b"%d" % number + b"x" * size)
        assert mortal.values(simulation[1]) == steady.values(one[1])
    for offset in range(len(steps)):
        assert simulation[1].segments.active.locate(offset) == one[1].segments.active.locate(offset)
    simulation[0].close()
    one[0].close()
    offsets = [
        {name: data for name, data in index_files(harness).items() if name.endswith(".index")}
        for harness in (mortal, steady)
    ]
    assert offsets[0] == offsets[1]


def test_indexes_of_an_idle_log_are_left_alone(make_pond: Callable[..., Any]) -> None:
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.append(log, b"one")
    store.close()
    before = index_files(harness)
    store, log = harness.open()
    active = log.segments.active
    assert (active._offsets, active._times, active.next_offset) == (None, None, 1)
    store.close()
    assert index_files(harness) == before


@pytest.mark.parametrize("damage", ["lost", "torn", "foreign"])
def test_indexes_are_rewritten_once_the_log_grows(make_pond: Callable[..., Any], damage: str) -> None:
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.append(log, b"one")
    store.close()
    for name in index_files(harness):
        path = f"{harness.partition}/{name}"
        if damage == "lost":
            harness.disk.remove(path)
        else:
            harness.disk.replace(path, b"abc" if damage == "torn" else b"\0\0\0\1" * 6)
    store, log = harness.open()
    for _ in range(9):
        harness.append(log, b"x" * 100)
    for offset in range(10):
        assert log.segments.active.locate(offset).base_offset == offset
    assert len(harness.values(log)) == 10
    store.close()
    intact = make_pond(limits=LIMITS)
    store, log = intact.open()
    intact.append(log, b"one")
    for _ in range(9):
        intact.append(log, b"x" * 100)
    store.close()
    assert index_files(harness) == index_files(intact)
