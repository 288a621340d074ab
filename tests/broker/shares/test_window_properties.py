"""Long lives of large windows, compared with the model, with chunks so small that ranges are always in several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.broker.shares.acquisition import AcquireMode
from millpond.coordinators.shares import range_map
from support.share_model import ACCEPT, GAP, REJECT, RELEASE, RENEW
from support.share_pair import LOCK_MS, Pair

MEMBERS = "ABC"


@st.composite
def logs(draw: Any) -> tuple[tuple[tuple[int, int], ...], int]:
    """Batches of a log with gaps between them, and its end."""
    position, batches = 0, []
    for size, gap in draw(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0, 0, 0, 1, 5])), max_size=14)):
        batches.append((position + gap, position + gap + size - 1))
        position += gap + size
    return tuple(batches), position + draw(st.integers(0, 3))


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("fetch"),
            st.sampled_from(MEMBERS),
            st.integers(1, 20),
            st.sampled_from(AcquireMode),
            st.integers(1, 40),
        ),
        st.tuples(
            st.just("acknowledge"),
            st.sampled_from(MEMBERS),
            st.integers(0, 100),
            st.lists(
                st.sampled_from([ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, GAP, RENEW]), min_size=1, max_size=12
            ),
        ),
        st.tuples(st.just("acknowledge run"), st.sampled_from(MEMBERS), st.sampled_from([ACCEPT, RELEASE, RENEW])),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("roll back"), st.integers(0, 5)),
        st.tuples(st.just("time"), st.sampled_from([1, LOCK_MS // 2, LOCK_MS])),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS), st.booleans()),
        st.tuples(st.just("reject"), st.sampled_from(MEMBERS), st.integers(0, 100), st.sampled_from(["a", "b"])),
        st.tuples(st.just("letters"), st.integers(1, 6)),
        st.tuples(st.just("retention"), st.integers(1, 30)),
        st.tuples(st.just("new leader")),
    ),
    max_size=120,
)


def play(pair: Pair, step: Any) -> None:
    match step:
        case ("fetch", member, most, mode, read):
            pair.fetch(member, most, mode, read=read)
        case ("acknowledge", member, where, types):
            held = pair.held(member)
            if held:
                # One verdict for each record from there on, until one is missing.
                first = held[where % len(held)]
                run = [first]
                while run[-1] + 1 in held and len(run) < len(types):
                    run.append(run[-1] + 1)
                pair.acknowledge(member, (first, run[-1], types[: len(run)]))
        case ("acknowledge run", member, kind):
            held = pair.held(member)
            if held:
                pair.acknowledge(member, (held[0], held[-1], [kind]))
        case ("reject", member, where, error):
            held = pair.held(member)
            if held:
                offset = held[where % len(held)]
                pair.acknowledge(member, (offset, offset, [REJECT], (error, "it broke")))
        case ("letters", most):
            pair.write_letters(most)
        case ("commit", index):
            if pair.changes:
                pair.commit(index % len(pair.changes))
        case ("roll back", index):
            if pair.changes:
                pair.roll_back(index % len(pair.changes))
        case ("time", ms):
            pair.pass_time(ms)
        case ("leave", member, were_delivered):
            pair.release_member(member, were_delivered=were_delivered)
        case ("retention", offsets):
            pair.retain_from(min(pair.window.start_offset + offsets, pair.log_end))
        case ("new leader",):
            pair.change_leader()
        case other:
            raise AssertionError(other)


@given(logs(), st.integers(2, 6), st.integers(1, 30), st.booleans(), STEPS)
@settings(max_examples=300)
def test_a_long_life(log: Any, limit: int, in_flight_max: int, has_letters: bool, steps: Any) -> None:
    batches, log_end = log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_map, "CHUNK_MAX", 4)
        patch.setattr(range_map, "CHUNK_MIN", 2)
        pair = Pair(batches, log_end, limit=limit, in_flight_max=in_flight_max, has_letters=has_letters)
        for step in steps:
            play(pair, step)
            pair.check()
