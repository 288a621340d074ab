"""Long lives of large windows, compared with the model, with chunks so small that ranges are always in several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.broker.shares.acquisition import AcquireMode
from millpond.coordinators.shares import range_map
from support.share_model import ACCEPT, GAP, REJECT, RELEASE, RENEW, Fact, Wants
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


WANTS = st.builds(
    Wants,
    delay=st.booleans(),
    key_order=st.booleans(),
    priority=st.booleans(),
    delay_max=st.sampled_from([1, 3, 1_000]),
    look_ahead=st.sampled_from([1, 5, 30]),
)


@st.composite
def facts_for(draw: Any, wants: Wants) -> dict[int, Fact]:
    """What the records of a log say, as far as the group asks for it."""
    keys = st.one_of(st.none(), st.integers(0, 4)) if wants.key_order else st.none()
    priorities = st.sampled_from([0, 4, 4, 9]) if wants.priority else st.just(4)
    times = st.sampled_from([-1, -1, 10, 30, 100]) if wants.delay else st.just(-1)
    facts: dict[int, Fact] = draw(
        st.dictionaries(st.integers(0, 120), st.tuples(keys, priorities, times), max_size=60)
    )
    return {offset: fact for offset, fact in facts.items() if fact != (None, 4, -1)}


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
        st.tuples(st.just("delay"), st.sampled_from(MEMBERS), st.sampled_from([5, 50])),
        st.tuples(st.just("clock"), st.sampled_from([1, 20, 50, -30])),
        st.tuples(st.just("reject"), st.sampled_from(MEMBERS), st.integers(0, 100), st.sampled_from(["a", "b"])),
        st.tuples(st.just("letters"), st.integers(1, 6)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("roll back"), st.integers(0, 5)),
        st.tuples(st.just("time"), st.sampled_from([1, LOCK_MS // 2, LOCK_MS])),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS), st.booleans()),
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
        case ("delay", member, delay_ms):
            held = pair.held(member)
            if held:
                pair.acknowledge(member, (held[0], held[0], [RELEASE]), delay_ms=delay_ms)
        case ("clock", ms):
            pair.turn_clock(ms)
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
    live(Pair(*log, limit=limit, in_flight_max=in_flight_max, has_letters=has_letters), steps)


@given(logs(), st.integers(2, 6), st.integers(1, 30), WANTS, st.data(), STEPS)
@settings(max_examples=200)
def test_a_long_life_with_delays_keys_and_priorities(
    log: Any, limit: int, in_flight_max: int, wants: Wants, data: Any, steps: Any
) -> None:
    facts, has_letters = data.draw(facts_for(wants)), data.draw(st.booleans())
    pair = Pair(*log, limit=limit, in_flight_max=in_flight_max, wants=wants, facts=facts, has_letters=has_letters)
    live(pair, steps)


def live(pair: Pair, steps: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_map, "CHUNK_MAX", 4)
        patch.setattr(range_map, "CHUNK_MIN", 2)
        for step in steps:
            play(pair, step)
            pair.check()
