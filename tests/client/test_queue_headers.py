"""The headers that a send with a delay, a time or a priority gets."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millpond.client.errors import ConfigError
from millpond.client.queue_headers import queue_headers


@pytest.mark.parametrize("delay", [1.5, timedelta(seconds=1.5)])
def test_a_delay_begins_now(delay: Any) -> None:
    before_ms = time.time() * 1000
    ((name, value),) = queue_headers(delay=delay)
    assert name == "queue.deliver-at"
    assert before_ms + 1_500 <= int(value or b"") <= time.time() * 1000 + 1_501


@pytest.mark.parametrize("at", [datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000])
def test_a_time_is_milliseconds_since_1970(at: Any) -> None:
    assert queue_headers(at=at) == [("queue.deliver-at", b"1893456000000")]


def test_a_priority_is_a_digit() -> None:
    assert queue_headers(priority=9) == [("queue.priority", b"9")]
    assert queue_headers() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"delay": 1, "at": 1}, "give one of them"),
        ({"delay": -1}, "between 0 seconds and a hundred years"),
        ({"delay": "5"}, "a number of seconds or a timedelta"),
        ({"delay": float("nan")}, "a number of seconds"),
        ({"delay": float("inf")}, "a hundred years"),
        ({"at": "tomorrow"}, "a datetime or milliseconds"),
        ({"priority": 10}, "between 0 and 9"),
        ({"priority": True}, "whole number"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        queue_headers(**arguments)
