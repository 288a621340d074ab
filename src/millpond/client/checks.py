"""Check arguments before they reach librdkafka, whose binding truncates, raises a bare TypeError or crashes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from millpond.base.ids import TopicPartition, topic_name_fault
from millpond.client.errors import ConfigError

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
SECONDS_MAX: Final = 2_000_000.0
"""About 23 days: librdkafka counts milliseconds in 32 bits."""
PATTERN_MARK: Final = "^"
"""A topic with this prefix is a regular expression."""


def check_session_timeout(given: object, protocol: str) -> None:
    """Only in the classic protocol may a member choose it; None is the default."""
    if given is None:
        return
    check_duration(given, "session_timeout_s")
    if protocol == "consumer":
        raise ConfigError(
            'session_timeout_s has no effect with protocol="consumer", where the broker decides: leave it out, and '
            "set consumer.session.timeout.ms of the group (`millpond config set group NAME "
            "consumer.session.timeout.ms=…`, at least the cluster's group.consumer.min.session.timeout.ms)"
        )


def check_text(given: object, what: str) -> str:
    """Text that C can take: valid Unicode without a NUL character."""
    if not isinstance(given, str):
        raise ConfigError(f"{what} is text, not {given!r:.60}")
    if "\0" in given:
        raise ConfigError(f"{what} cannot contain a NUL character: {given!r:.60}")
    encoded(given, what)
    return given


def encoded(given: str, what: str) -> bytes:
    """Text as UTF-8; ConfigError for a lone surrogate."""
    try:
        return given.encode()
    except UnicodeEncodeError as fault:
        raise ConfigError(
            f"{what} cannot be written as UTF-8, it has a lone surrogate at position {fault.start}: {given!a:.60}"
        ) from None


def check_topic(given: object, what: str = "a topic") -> str:
    """A topic name that is valid in every Kafka cluster."""
    if not isinstance(given, str) or not given:
        raise ConfigError(f"{what} is a name, not {given!r:.60}")
    if fault := topic_name_fault(given):
        raise ConfigError(fault)
    return given


def check_topics(given: object) -> list[str]:
    """The topics of a consumer; one that begins with ^ is a pattern."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f'topics is a list of names, topics=["orders"], not {given!r:.60}')
    names = list(given)
    if not names:
        raise ConfigError('topics is a list of at least one name: topics=["orders"]')
    for each in names:
        if isinstance(each, str) and each.startswith(PATTERN_MARK):
            check_text(each, "a pattern of topics")
        else:
            check_topic(each, "each of the topics")
    return names


def check_whole(given: object, what: str, least: int = 0, most: int = INT64_MAX) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(f"{what} is a whole number, not {given!r:.60}")
    if not least <= given <= most:
        raise ConfigError(f"{what} is between {least} and {most}, not {given!r:.60}")
    return given


def check_seconds(given: object, what: str = "timeout_s") -> float:
    """A timeout. A negative one has expired already; a very long one is cut to what librdkafka can count."""
    if not isinstance(given, int | float) or isinstance(given, bool) or math.isnan(given):
        raise ConfigError(f"{what} is a number of seconds, not {given!r:.60}")
    return float(min(max(given, 0), SECONDS_MAX))


def check_duration(given: object, what: str) -> float:
    """A duration that is a setting."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given <= SECONDS_MAX:
        raise ConfigError(f"{what} is a number of seconds up to {SECONDS_MAX:,.0f}, not {given!r:.60}")
    return float(given)


def check_milliseconds(given: object, what: str) -> int:
    return check_whole(given, f"{what}, in milliseconds since 1970,")


def check_time(given: object, what: str) -> int:
    """A datetime, or milliseconds since 1970: as the latter."""
    if isinstance(given, datetime):
        try:
            given = int(given.timestamp() * 1000)
        except (OverflowError, OSError, ValueError) as fault:
            raise ConfigError(f"{what} is out of range: {fault}") from None
        return max(given, 0)
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(f"{what} is a datetime or milliseconds since 1970, not {given!r:.60}")
    return check_milliseconds(given, what)


def check_partition(given: object) -> TopicPartition:
    """A topic and a partition, as TopicPartition or as a pair."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise ConfigError(f'a partition is TopicPartition("orders", 0), not {given!r:.60}')
    topic, number = given
    return TopicPartition(check_topic(topic), check_whole(number, "a partition", 0, INT32_MAX))


def check_partitions(given: object) -> list[TopicPartition]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f'partitions is a list like [TopicPartition("orders", 0)], not {given!r:.60}')
    return [check_partition(each) for each in given]


def check_offsets(given: object) -> dict[TopicPartition, int]:
    if not isinstance(given, Mapping):
        raise ConfigError(f'offsets is a mapping like {{TopicPartition("orders", 0): 7}}, not {given!r:.60}')
    return {check_partition(each): check_whole(offset, "an offset") for each, offset in given.items()}


def check_callable(given: object, what: str) -> None:
    if not isinstance(given, Callable):  # type: ignore[arg-type]
        raise ConfigError(f"{what} is a function, not {given!r:.60}")


def check_choice(given: object, what: str, choices: Sequence[str]) -> None:
    if not isinstance(given, str) or given not in choices:
        quoted = [f'"{each}"' for each in choices]
        raise ConfigError(f"{what} is {', '.join(quoted[:-1])} or {quoted[-1]}, not {given!r:.60}")


def _check_setting(name: str, value: str) -> None:
    # The value may be a password: no error repeats it.
    if "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ConfigError(f"the setting {name} has a NUL character or a lone surrogate: librdkafka cannot store it")


def check_settings(given: object) -> dict[str, Any]:
    """librdkafka settings: names and values that it can store unchanged."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"settings is a mapping from librdkafka's names to values, not {given!r:.60}")
    for name, value in given.items():
        check_text(name, "the name of a setting")
        if isinstance(value, str):
            _check_setting(name, value)
        elif isinstance(value, Mapping):
            check_settings(value)
        elif value is not None and not isinstance(value, int | float) and not callable(value):
            # librdkafka's binding would store its `str`.
            raise ConfigError(f"the setting {name} is text, a number or a function, not {type(value).__name__}")
    return dict(given)
