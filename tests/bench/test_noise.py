"""What a difference of two figures means: arithmetic alone, nothing is timed."""

from __future__ import annotations

import pytest
from bench.noise import (
    COPY,
    LOOP,
    NOISE_LEAST,
    SPREAD_OF_ONE,
    SYNC,
    Verdict,
    limit_of,
    medians_of,
    noise_of,
    pace_of,
    share_of_limit,
    spread_of,
    times_worse,
    verdict_of,
)
from hypothesis import given
from hypothesis import strategies as st

figures = st.floats(min_value=1e-3, max_value=1e9)


def test_a_spread_is_half_of_the_range_beside_the_median() -> None:
    assert spread_of([90.0, 100.0, 130.0]) == pytest.approx(0.2)
    assert spread_of([7.0, 7.0]) == 0
    assert spread_of([0.0, 0.0]) == 0


def test_one_slice_does_not_know_its_spread() -> None:
    assert spread_of([7.0]) == SPREAD_OF_ONE > 0


def test_each_figure_has_its_own_median_and_its_spread() -> None:
    slices = [
        {"p50_ms": 1.0, "mb_per_s": 50.0},
        {"p50_ms": 9.0, "mb_per_s": 100.0},
        {"p50_ms": 2.0, "mb_per_s": 60.0},
    ]
    assert medians_of(slices) == {
        "p50_ms": 2.0,
        "p50_ms_spread": pytest.approx(2.0),
        "mb_per_s": 60.0,
        "mb_per_s_spread": pytest.approx(25 / 60),
    }


def test_more_is_better_of_rates_and_less_of_everything_else() -> None:
    assert times_worse("messages_per_s", 50.0, 100.0) == 2
    assert times_worse("transactions_per_s", 200.0, 100.0) == 0.5
    assert times_worse("us_per_request", 50.0, 25.0) == 2
    assert times_worse("resident_mb", 30.0, 60.0) == 0.5


def test_nothing_follows_from_nothing() -> None:
    assert times_worse("messages_per_s", 0.0, 100.0) == 1
    assert times_worse("p99_ms", 3.0, 0.0) == 1


@given(figures, figures, st.sampled_from(sorted(NOISE_LEAST)))
def test_worse_one_way_is_better_the_other(ours: float, other: float, name: str) -> None:
    assert times_worse(name, ours, other) * times_worse(name, other, ours) == pytest.approx(1)


def test_noise_is_the_spread_of_both_and_never_less_than_two_runs_differ_by() -> None:
    assert noise_of("mb_per_s", {"mb_per_s_spread": 0.2}, {"mb_per_s_spread": 0.15}) == pytest.approx(0.35)
    assert noise_of("mb_per_s", {"mb_per_s_spread": 0.01}, {}) == NOISE_LEAST["mb_per_s"]
    assert noise_of("p99_ms", {}, {}) > noise_of("p50_ms", {}, {}) > noise_of("messages_per_s", {}, {})


@pytest.mark.parametrize(
    ("worse", "expected"),
    [
        (1.0, Verdict.EVEN),
        (1.1, Verdict.EVEN),
        (1.1001, Verdict.WORSE),
        (1 / 1.1, Verdict.EVEN),
        (1 / 1.12, Verdict.BETTER),
        (9.0, Verdict.WORSE),
    ],
)
def test_a_verdict_needs_more_than_the_noise(worse: float, expected: Verdict) -> None:
    assert verdict_of(worse, 0.1) is expected


@given(st.floats(min_value=0.01, max_value=100), st.floats(min_value=0, max_value=3))
def test_better_and_worse_are_mirrored(worse: float, noise: float) -> None:
    if abs(worse - (1 + noise)) > 1e-9 and abs(1 / worse - (1 + noise)) > 1e-9:
        mirrored = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER, Verdict.EVEN: Verdict.EVEN}
        assert verdict_of(1 / worse, noise) is mirrored[verdict_of(worse, noise)]


def test_each_figure_follows_a_limit_of_the_machine() -> None:
    assert limit_of("messages_per_s", LOOP) == "loop_requests_per_s"
    assert limit_of("p50_ms", LOOP) == "loop_p50_ms"
    assert limit_of("mb_per_s", COPY) == "copy_mb_per_s"
    assert limit_of("messages_per_s", SYNC) == "sync_p50_ms"
    assert limit_of("us_per_request", SYNC) == "loop_us_per_request"
    assert limit_of("resident_mb", LOOP) is None


def test_a_machine_of_half_the_speed_has_half_the_pace() -> None:
    assert pace_of("loop_requests_per_s", {"loop_requests_per_s": 50e3}, {"loop_requests_per_s": 25e3}) == 0.5
    assert pace_of("sync_p50_ms", {"sync_p50_ms": 1.0}, {"sync_p50_ms": 2.0}) == 0.5
    assert pace_of("sync_p50_ms", {}, {"sync_p50_ms": 2.0}) == 1


def test_the_share_of_what_the_machine_can_do() -> None:
    floor = {"loop_requests_per_s": 80e3, "copy_mb_per_s": 5000.0, "sync_p50_ms": 0.5}
    assert share_of_limit(LOOP, {"requests_per_s": 40e3}, floor) == 0.5
    assert share_of_limit(COPY, {"mb_per_s": 1000.0}, floor) == 0.2
    assert share_of_limit(SYNC, {"p50_ms": 2.0}, floor) == 0.25
    assert share_of_limit(LOOP, {"mb_per_s": 1.0}, floor) is None
    assert share_of_limit(SYNC, {"p50_ms": 2.0}, {}) is None
