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


def check_session_timeout(value: object, protocol: str) -> None:
    """Only in the classic protocol may a member choose it; None is the default."""
    if value is None:
        return
    check_duration(value, "session_timeout_s")
    if protocol == "consumer":
        raise ConfigError(
            'session_timeout_s has no effect with protocol="consumer", where the broker decides: leave it out, and '
            "set consumer.session.timeout.ms of the group (`millpond config set group NAME "
            "consumer.session.timeout.ms=…`, at least the cluster's group.consumer.min.session.timeout.ms)"
        )


def check_text(value: object, what: str) -> str:
    """Text that C can take: valid Unicode without a NUL character."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} is text, not {value!r:.60}")
    if "\0" in value:
        raise ConfigError(f"{what} cannot contain a NUL character: {value!r:.60}")
    encoded(value, what)
    return value


def encoded(value: str, what: str) -> bytes:
    """Text as UTF-8; ConfigError for a lone surrogate."""
    try:
        return value.encode()
    except UnicodeEncodeError as fault:
        raise ConfigError(
            f"{what} cannot be written as UTF-8, it has a lone surrogate at position {fault.start}: {value!a:.60}"
        ) from None


def check_topic(value: object, what: str = "a topic") -> str:
    """A topic name that is valid in every Kafka cluster."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is a name, not {value!r:.60}")
    if fault := topic_name_fault(value):
        raise ConfigError(fault)
    return value


def check_topics(value: object) -> list[str]:
    """The topics of a consumer; one that begins with ^ is a pattern."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f'topics is a list of names, topics=["orders"], not {value!r:.60}')
    names = list(value)
    if not names:
        raise ConfigError('topics is a list of at least one name: topics=["orders"]')
    for each in names:
        if isinstance(each, str) and each.startswith(PATTERN_MARK):
            check_text(each, "a pattern of topics")
        else:
            check_topic(each, "each of the topics")
    return names


def check_whole(value: object, what: str, least: int = 0, most: int = INT64_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{what} is a whole number, not {value!r:.60}")
    if not least <= value <= most:
        raise ConfigError(f"{what} is between {least} and {most}, not {value!r:.60}")
    return value


def check_seconds(value: object, what: str = "timeout_s") -> float:
    """A timeout. A negative one has expired already; a very long one is cut to what librdkafka can count."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise ConfigError(f"{what} is a number of seconds, not {value!r:.60}")
    return float(min(max(value, 0), SECONDS_MAX))


def check_duration(value: object, what: str) -> float:
    """A duration that is a setting."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= SECONDS_MAX:
        raise ConfigError(f"{what} is a number of seconds up to {SECONDS_MAX:,.0f}, not {value!r:.60}")
    return float(value)


def check_milliseconds(value: object, what: str) -> int:
    return check_whole(value, f"{what}, in milliseconds since 1970,")


def check_time(value: object, what: str) -> int:
    """A datetime, or milliseconds since 1970: as the latter."""
    if isinstance(value, datetime):
        try:
            value = int(value.timestamp() * 1000)
        except (OverflowError, OSError, ValueError) as fault:
            raise ConfigError(f"{what} is out of range: {fault}") from None
        return max(value, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{what} is a datetime or milliseconds since 1970, not {value!r:.60}")
    return check_milliseconds(value, what)


def check_partition(value: object) -> TopicPartition:
    """A topic and a partition, as TopicPartition or as a pair."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ConfigError(f'a partition is TopicPartition("orders", 0), not {value!r:.60}')
    topic, number = value
    return TopicPartition(check_topic(topic), check_whole(number, "a partition", 0, INT32_MAX))


def check_partitions(value: object) -> list[TopicPartition]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f'partitions is a list like [TopicPartition("orders", 0)], not {value!r:.60}')
    return [check_partition(each) for each in value]


def check_offsets(value: object) -> dict[TopicPartition, int]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'offsets is a mapping like {{TopicPartition("orders", 0): 7}}, not {value!r:.60}')
    return {check_partition(each): check_whole(offset, "an offset") for each, offset in value.items()}


def check_callable(value: object, what: str) -> None:
    if not isinstance(value, Callable):  # type: ignore[arg-type]
        raise ConfigError(f"{what} is a function, not {value!r:.60}")


def check_choice(value: object, what: str, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        quoted = [f'"{each}"' for each in choices]
        raise ConfigError(f"{what} is {', '.join(quoted[:-1])} or {quoted[-1]}, not {value!r:.60}")


def _check_setting(name: str, value: str) -> None:
    # The value may be a password: no error repeats it.
    if "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ConfigError(f"the setting {name} has a NUL character or a lone surrogate: librdkafka cannot store it")


def check_settings(settings: object) -> dict[str, Any]:
    """librdkafka settings: names and values that it can store unchanged."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings is a mapping from librdkafka's names to values, not {settings!r:.60}")
    for name, value in settings.items():
        check_text(name, "the name of a setting")
        if isinstance(value, str):
            _check_setting(name, value)
        elif isinstance(value, Mapping):
            check_settings(value)
        elif value is not None and not isinstance(value, int | float) and not callable(value):
            # librdkafka's binding would store its `str`.
            raise ConfigError(f"the setting {name} is text, a number or a function, not {type(value).__name__}")
    return dict(settings)
