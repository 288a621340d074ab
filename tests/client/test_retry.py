"""When a failed record is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ConfigError, Message, Retry
from millpond.client.dead_letters import Origin, origin_of
from millpond.client.message import header_list
from millpond.client.retry import read_new, read_retried, retry_record, retry_topic


def test_the_three_ways_to_back_off() -> None:
    def delays(retry: Retry) -> list[float]:
        return [retry.plain_delay_s(failed) for failed in range(1, 5)]

    assert delays(Retry(5, "exponential", first_s=1)) == [1, 2, 4, 8]
    assert delays(Retry(5, "exponential", first_s=1, factor=10, longest_s=50)) == [1, 10, 50, 50]
    assert delays(Retry(5, "linear", first_s=1)) == [1, 2, 3, 4]
    assert delays(Retry(5, "fixed", first_s=1)) == [1, 1, 1, 1]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_jitter_only_adds_and_never_more_than_it_may(failed: int, chance: float) -> None:
    retry = Retry(10_001, first_s=0.1, jitter=0.5)
    plain = retry.plain_delay_s(failed)
    assert plain <= retry.delay_s(failed, lambda: chance) <= plain * 1.5
    assert plain <= 60


def test_long_delays_wait_in_topics_unless_order_is_kept() -> None:
    retry = Retry(6, first_s=1, order="none", topics_from_s=4)
    assert [retry.waits_in_topic(failed) for failed in range(1, 6)] == [False, False, True, True, True]
    assert retry.topics("orders") == {"orders.retry.4s": 4.8, "orders.retry.8s": 9.6, "orders.retry.16s": 19.2}
    assert Retry(6, first_s=60, order="key").topics("orders") == {}


@pytest.mark.parametrize(
    ("delay_s", "name"), [(5, "5s"), (60, "1m"), (90, "90s"), (3600, "1h"), (0.25, "250ms"), (1.5, "1500ms")]
)
def test_retry_topics_are_named_by_their_delay(delay_s: float, name: str) -> None:
    assert retry_topic("orders", delay_s) == f"orders.retry.{name}"


def test_a_record_remembers_through_retry_topics_where_it_came_from() -> None:
    origin = Origin("orders", 3, 77, 1_700_000_000_000)
    message = Message("orders", 3, 77, 1, b"k", b"v", (("own", b"1"),))
    sent = retry_record(message, to="orders.retry.5s", origin=origin, attempts=2, due_ms=99, group="g", redriven=2)
    waiting = Message(sent.topic, 0, 0, 0, b"k", b"v", tuple(header_list(sent.headers)))
    taken = read_retried(waiting)
    assert (taken.origin, taken.attempts, taken.due_ms, taken.group, taken.redriven) == (origin, 2, 99, "g", 2)
    assert taken.message.headers == (("own", b"1"),), "a handler sees only what others put there"


def test_damaged_headers_in_a_retry_topic_make_a_new_record() -> None:
    damaged = Message("orders.retry.5s", 0, 4, headers=(("retry.topic", b"orders"), ("retry.offset", b"x")))
    assert read_retried(damaged).attempts == 0
    assert read_retried(damaged).origin == origin_of(damaged)


@pytest.mark.parametrize(
    ("name", "number"), [("retry.due", 10**4000), ("retry.due", -1), ("retry.attempts", -(10**400))]
)
def test_numbers_that_nobody_of_us_writes_make_a_new_record(name: str, number: int) -> None:
    """Converted to a float they raised on the polling thread, and ended the worker at every start."""
    first = Message("orders", 0, 1)
    sent = retry_record(
        first, to="orders.retry.5s", origin=origin_of(first), attempts=1, due_ms=5, group="g", redriven=0
    )
    message = Message(sent.topic, 0, 7, headers=(*header_list(sent.headers), (name, b"%d" % number)))
    assert read_retried(message) == read_new(message)


def test_elsewhere_our_headers_are_not_believed() -> None:
    foreign = (("retry.topic", b"other"), ("retry.group", b"other"), ("retry.attempts", b"9"), ("own", b"1"))
    taken = read_new(Message("orders", 0, 4, headers=foreign))
    assert (taken.origin.topic, taken.attempts, taken.group, taken.due_ms) == ("orders", 0, None, 0)
    assert taken.message.headers == foreign, "they are whose they are"


def test_a_redriven_record_s_count_is_kept_from_the_handler_but_a_dead_letter_is_whole() -> None:
    redriven = read_new(Message("orders", 0, 4, headers=(("own", b"1"), ("dlq.redriven", b"2"))))
    assert (redriven.redriven, redriven.message.headers) == (2, (("own", b"1"),))
    letter = Message("orders.dlq", 0, 4, headers=(("dlq.topic", b"orders"), ("dlq.redriven", b"2")))
    assert read_new(letter).message == letter


@pytest.mark.parametrize(
    "bad", [{"tries": 0}, {"backoff": "never"}, {"order": "any"}, {"first_s": -1}, {"factor": 0.5}, {"jitter": -0.1}]
)
def test_what_cannot_be_is_refused(bad: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError):
        Retry(**bad)
