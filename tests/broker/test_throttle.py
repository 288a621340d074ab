"""The rate at which replicas outside the ISR are copied."""

from __future__ import annotations

import pytest

from millpond.base.settings import SettingError
from millpond.broker.replication.throttle import LOOK_MS, Throttle, is_named
from millpond.config.topic import LEADER_THROTTLED_REPLICAS


def test_what_went_beyond_the_rate_is_waited_for() -> None:
    throttle = Throttle(lambda: 1_000)
    assert throttle.held_ms(0) == 0
    throttle.count(500, 0)
    assert (throttle.held_ms(0), throttle.held_ms(499), throttle.held_ms(500)) == (500, 1, 0)
    throttle.count(100, 5_000)
    assert throttle.held_ms(5_000) == 100, "idle time saves up no allowance"
    throttle.count(100, 5_050)
    assert throttle.held_ms(5_050) == 150


def test_another_rate_counts_from_the_next_look_on() -> None:
    rates = [1]
    throttle = Throttle(lambda: rates[0])
    throttle.count(1_000, 0)
    assert throttle.held_ms(0) == LOOK_MS, "a quarter of an hour, but it may change"
    rates[0] = 10_000
    assert throttle.held_ms(1_000) == 0


def test_without_a_rate_there_is_no_delay() -> None:
    throttle = Throttle()
    throttle.count(1 << 40, 0)
    assert throttle.held_ms(0) == 0


@pytest.mark.parametrize(
    ("text", "named"), [("", False), ("0:1,2:7", True), ("2:8", False), ("*", True), ("none", False), ("2:77", False)]
)
def test_replicas_are_named_as_kafkas_tools_do(text: str, named: bool) -> None:
    assert is_named(LEADER_THROTTLED_REPLICAS.parse(text), 2, 7) is named


@pytest.mark.parametrize("text", ["1", "a:b", "0:1,*", "1:2:3"])
def test_a_list_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        LEADER_THROTTLED_REPLICAS.parse(text)
