"""The headers that delay a record and give it a priority, for members of share groups."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta
from math import ceil
from typing import Final, TypeAlias

from millpond.base.names import DELIVER_AT_HEADER, PRIORITY_HEADER, PRIORITY_MAX
from millpond.client.checks import check_time, check_whole
from millpond.client.errors import ConfigError
from millpond.client.message import Header

Delay: TypeAlias = "float | timedelta"
"""Seconds, or a timedelta."""

DELAY_SECONDS_MAX: Final = 100 * 365 * 86_400.0


def queue_headers(
    delay: Delay | None = None, at: datetime | int | None = None, priority: int | None = None
) -> list[Header]:
    """The headers for these arguments of a send. A delay begins now, on this machine's clock."""
    headers: list[Header] = []
    if delay is not None and at is not None:
        raise ConfigError("delay and at both say when a record is delivered: give one of them")
    if delay is not None:
        due_ms = ceil(time.time() * 1000 + check_delay(delay) * 1000)
        headers.append((DELIVER_AT_HEADER, b"%d" % due_ms))
    elif at is not None:
        headers.append((DELIVER_AT_HEADER, b"%d" % check_time(at, "at")))
    if priority is not None:
        check_whole(priority, "priority", 0, PRIORITY_MAX)
        headers.append((PRIORITY_HEADER, b"%d" % priority))
    return headers


def check_delay(value: object, what: str = "delay") -> float:
    """Seconds, or a timedelta: as seconds."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise ConfigError(f"{what} is a number of seconds or a timedelta, not {value!r:.60}")
    if not 0 <= value <= DELAY_SECONDS_MAX:
        raise ConfigError(f"{what} is between 0 seconds and a hundred years, not {value!r:.60}")
    return float(value)
