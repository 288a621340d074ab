"""Every state that a small window can reach in a few steps, compared with the model after each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.shares.acquisition import AcquireMode
from support.share_model import ACCEPT, GAP, REJECT, RELEASE, RENEW, Wants
from support.share_pair import LOCK_MS, Pair

Step = Callable[[Pair], object]


def each_type(pair: Pair, member: str, *kinds: int) -> None:
    """Acknowledge all that the member holds, run by run, with these types in turn."""
    batches: list[tuple[int, int, list[int]]] = []
    for index, offset in enumerate(pair.held(member)):
        kind = kinds[index % len(kinds)]
        if batches and batches[-1][1] == offset - 1:
            first, _, types = batches.pop()
            batches.append((first, offset, [*types, kind]))
        else:
            batches.append((offset, offset, [kind]))
    if batches:
        assert pair.acknowledge(member, *batches) is ErrorCode.NONE


def whole(pair: Pair, member: str, kind: int) -> None:
    """Acknowledge everything with one type for each run."""
    runs: list[tuple[int, int, list[int]]] = []
    for offset in pair.held(member):
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset, [kind])
        else:
            runs.append((offset, offset, [kind]))
    if runs:
        assert pair.acknowledge(member, *runs) is ErrorCode.NONE


def accept_first(pair: Pair) -> None:
    held = pair.held("A")
    if held:
        assert pair.acknowledge("A", (held[0], held[0], [ACCEPT])) is ErrorCode.NONE


def release_last(pair: Pair) -> None:
    held = pair.held("A")
    if held:
        assert pair.acknowledge("A", (held[-1], held[-1], [RELEASE])) is ErrorCode.NONE


def release_with_delay(pair: Pair) -> None:
    held = pair.held("A")
    if held:
        assert pair.acknowledge("A", (held[0], held[0], [RELEASE]), delay_ms=50) is ErrorCode.NONE


def commit(index: int) -> Step:
    return lambda pair: pair.commit(index) if len(pair.changes) > max(index, 0) else None


def roll_back(pair: Pair) -> None:
    if pair.changes:
        pair.roll_back()


def refuse_strangers(pair: Pair) -> None:
    """Nobody acknowledges what it does not hold, not even in part."""
    start, end = pair.window.start_offset, pair.window.end_offset
    for kind in (ACCEPT, RENEW):
        assert pair.acknowledge("A", (start, end, [kind])) is ErrorCode.INVALID_REQUEST
        if start < end:
            assert pair.acknowledge("C", (0, end - 1, [kind])) is ErrorCode.INVALID_RECORD_STATE
            held = pair.held("A")
            if 0 < len(held) < end - start:
                whole_window = (start, end - 1, [kind])
                assert pair.acknowledge("A", whole_window) is ErrorCode.INVALID_RECORD_STATE


STEPS: dict[str, Step] = {
    "A fetches": lambda pair: pair.fetch("A", 2),
    "A fetches one": lambda pair: pair.fetch("A", 1, AcquireMode.RECORD_LIMIT),
    "B fetches": lambda pair: pair.fetch("B", 10),
    "A accepts the first": accept_first,
    "A releases the last": release_last,
    "A accepts, releases, rejects": lambda pair: each_type(pair, "A", ACCEPT, RELEASE, GAP, REJECT),
    "A releases all": lambda pair: whole(pair, "A", RELEASE),
    "A renews": lambda pair: whole(pair, "A", RENEW),
    "B accepts all": lambda pair: whole(pair, "B", ACCEPT),
    "half a lock passes": lambda pair: pair.pass_time(LOCK_MS // 2),
    "the oldest write succeeds": commit(0),
    "the newest write succeeds": commit(-1),
    "the oldest write fails": roll_back,
    "A leaves": lambda pair: pair.release_member("A"),
    "A is lost": lambda pair: pair.release_member("A", were_delivered=True),
    "retention": lambda pair: pair.retain_from(pair.window.start_offset + 1),
    "the leader changes": lambda pair: pair.change_leader(),
}

LETTER_STEPS: dict[str, Step] = STEPS | {"a letter is written": lambda pair: pair.write_letters(1)}

WAITING_STEPS: dict[str, Step] = {
    "A fetches": STEPS["A fetches"],
    "B fetches": STEPS["B fetches"],
    "A accepts the first": accept_first,
    "A releases the last": release_last,
    "A releases the first for later": release_with_delay,
    "B accepts all": STEPS["B accepts all"],
    "the clock goes on": lambda pair: pair.turn_clock(50),
    "the clock goes back": lambda pair: pair.turn_clock(-70),
    "a lock passes": lambda pair: pair.pass_time(LOCK_MS),
    "the oldest write succeeds": commit(0),
    "the oldest write fails": roll_back,
    "retention": STEPS["retention"],
    "the leader changes": STEPS["the leader changes"],
}

BATCHES = ((0, 1), (2, 2), (3, 4))
WORLDS: dict[str, tuple[dict[str, Step], Callable[[], Pair]]] = {
    "batches": (STEPS, lambda: Pair(BATCHES, 5)),
    "gaps": (STEPS, lambda: Pair(((1, 2), (4, 4)), 7, limit=2)),
    "one at a time": (STEPS, lambda: Pair(((0, 0), (1, 1), (2, 2)), 3, in_flight_max=2)),
    "letters": (LETTER_STEPS, lambda: Pair(((0, 1), (2, 2)), 3, limit=2, in_flight_max=3, has_letters=True)),
    "delay": (
        WAITING_STEPS,
        lambda: Pair(
            BATCHES, 5, wants=Wants(delay=True), facts={1: (None, 4, 60), 3: (None, 4, 40), 4: (None, 4, 40)}
        ),
    ),
    "few delays": (
        WAITING_STEPS,
        lambda: Pair(BATCHES, 5, wants=Wants(delay=True, delay_max=1), facts={1: (None, 4, 60), 3: (None, 4, 60)}),
    ),
    "keys": (
        WAITING_STEPS,
        lambda: Pair(
            BATCHES,
            5,
            wants=Wants(delay=True, key_order=True, look_ahead=3),
            facts={0: (7, 4, -1), 1: (8, 4, 60), 2: (7, 4, 60), 3: (8, 4, -1), 4: (7, 4, -1)},
        ),
    ),
    "priorities": (
        WAITING_STEPS,
        lambda: Pair(
            ((0, 0), (2, 4)),
            6,
            in_flight_max=2,
            wants=Wants(priority=True, look_ahead=3),
            facts={2: (None, 9, -1), 3: (None, 1, -1), 4: (None, 9, -1)},
        ),
    ),
}
"""What may happen, and the pair to which it does."""

ALWAYS = ("letters", "few delays", "keys")
"""Worlds of `make test`; the others take longer."""

DEPTH = 5
STATES_MIN = 300


@pytest.mark.parametrize(
    "world", [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.slow) for each in WORLDS]
)
def test_every_state_that_can_be_reached(world: str) -> None:
    steps, begin = WORLDS[world]
    seen: set[tuple[object, ...]] = set()
    paths: list[tuple[str, ...]] = [()]
    for _ in range(DEPTH):
        longer: list[tuple[str, ...]] = []
        for path in paths:
            for name, step in steps.items():
                pair = begin()
                for each in path:
                    steps[each](pair)
                try:
                    step(pair)
                    pair.check()
                except AssertionError as error:
                    raise AssertionError(f"after {', '.join((*path, name))}") from error
                state = pair.fingerprint()
                if state not in seen:
                    refuse_strangers(pair)
                    assert pair.fingerprint() == state
                    seen.add(state)
                    longer.append((*path, name))
        paths = longer
    assert len(seen) > STATES_MIN, f"{len(seen)}"
