"""Token buckets: a rate, a burst, debt that has to be waited off, and a limit on the number of buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.broker.security.bucket import WAIT_MS_MAX, Bucket, Buckets


def test_what_was_saved_up_may_be_taken_at_once_and_what_goes_beyond_is_owed() -> None:
    bucket = Bucket(100.0, 10, now_ms=0)
    bucket.take(1000, 0)
    assert bucket.wait_ms(0) == 0, "all of it, and not more"
    bucket.take(1, 0)
    assert bucket.wait_ms(0) == 10
    bucket.take(50, 0)
    assert bucket.wait_ms(0) == 510
    assert bucket.wait_ms(500) == 10
    assert bucket.wait_ms(510) == 0
    assert bucket.left(1510) == 100
    assert bucket.left(1_000_000) == 1000, "no more than fits"
    assert bucket.is_full(1_000_000)


def test_a_clock_that_stands_still_or_falls_gives_nothing() -> None:
    bucket = Bucket(100.0, 1, now_ms=1000)
    bucket.take(100, 1000)
    assert bucket.left(500) == 0


def test_a_changed_rate_prolongs_no_delay() -> None:
    bucket = Bucket(100.0, 10, now_ms=0)
    bucket.take(1500, 0)
    assert bucket.wait_ms(0) == 5000
    bucket.change(10.0, 10, 0)
    assert bucket.wait_ms(0) == 5000
    bucket.change(5.0, 10, 0)
    assert bucket.wait_ms(0) == 5000
    fresh = Bucket(100.0, 10, now_ms=0)
    fresh.change(10.0, 10, 0)
    assert fresh.left(0) == 100


def test_whose_quota_is_raised_waits_no_longer_than_what_he_took_is_worth() -> None:
    """For example, an operator set 1 byte a second and meant a megabyte."""
    bucket = Bucket(1.0, 10, now_ms=0)
    bucket.take(1_000_000, 0)
    assert bucket.wait_ms(0) > 900_000_000
    bucket.change(1_000_000.0, 10, 0)
    assert bucket.wait_ms(0) <= 1_000


def test_a_wait_is_never_longer_than_the_protocol_can_tell() -> None:
    bucket = Bucket(1.0, 1, now_ms=0)
    bucket.take(1e12, 0)
    assert bucket.wait_ms(0) == WAIT_MS_MAX


@given(
    st.floats(1, 1e6), st.integers(1, 20), st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1e6)), max_size=50)
)
def test_over_any_time_no_more_is_taken_than_the_rate_and_one_burst_allow(
    rate: float, seconds: int, steps: list[tuple[int, float]]
) -> None:
    """For a client that waits as long as it is asked to; only its last request may exceed the limit."""
    bucket = Bucket(rate, seconds, 0)
    now_ms, taken, last = 0, 0.0, 0.0
    for pause_ms, amount in steps:
        now_ms += pause_ms + bucket.wait_ms(now_ms + pause_ms)
        bucket.take(amount, now_ms)
        taken, last = taken + amount, amount
        assert taken - last <= (rate * (seconds + now_ms / 1000)) * 1.000001 + 1


def test_of_many_those_that_are_full_are_forgotten_and_the_rest_is_a_crowd() -> None:
    reports: list[str] = []
    buckets: Buckets[str] = Buckets(2, lambda: reports.append("forgotten"))
    first = buckets.of("a", "k", 1.0, 10, 0)
    first.take(100, 0)
    buckets.of("b", "k", 1.0, 10, 0)
    assert buckets.of("c", "k", 1.0, 10, 0) is not first
    assert (len(buckets), reports) == (2, ["forgotten"]), "b was full"
    crowd = buckets.of("d", "k", 1.0, 10, 0)
    assert buckets.of("c", "k", 1.0, 10, 0) is not crowd, "it is full, and not looked at again so soon"
    buckets.of("c", "k", 1.0, 10, 0).take(1, 0)
    assert buckets.of("d", "k", 1.0, 10, 900) is crowd
    assert buckets.of("e", "k", 1.0, 10, 0) is crowd
    assert buckets.of("f", "another", 5.0, 10, 0) is not crowd
    assert buckets.of("a", "k", 1.0, 10, 0) is first, "a bucket in debt is kept"
    assert len(buckets) == 2


def test_a_bucket_follows_its_rate() -> None:
    buckets: Buckets[str] = Buckets(2)
    bucket = buckets.of("a", "k", 1.0, 10, 0)
    assert buckets.of("a", "k", 7.0, 10, 0) is bucket
    assert bucket.rate == 7.0
