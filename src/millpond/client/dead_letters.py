"""Dead letters: failed records, with headers for their origin and the error.

Numbers are decimal text, times are milliseconds since 1970. The record's key, value and headers are kept; headers
from an earlier dead letter are replaced.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Final

from millpond.base import names
from millpond.client.errors import DecodeFailed
from millpond.client.message import Header, Headers, Message, Send, header_list

ENDING: Final = names.DEAD_LETTERS_ENDING

PREFIX: Final = names.DLQ_PREFIX
TOPIC: Final = names.DLQ_TOPIC
PARTITION: Final = names.DLQ_PARTITION
OFFSET: Final = names.DLQ_OFFSET
TIMESTAMP: Final = names.DLQ_TIMESTAMP
ATTEMPTS: Final = names.DLQ_ATTEMPTS
ERROR_TYPE: Final = names.DLQ_ERROR_TYPE
ERROR_MESSAGE: Final = names.DLQ_ERROR_MESSAGE
ERROR_TRACEBACK: Final = names.DLQ_ERROR_TRACEBACK
GROUP: Final = names.DLQ_GROUP
TIME: Final = names.DLQ_TIME
REDRIVEN: Final = names.DLQ_REDRIVEN
"""How often the record was redriven from the dead letters. Stays on the redriven record."""
REDRIVEN_FOR: Final = names.DLQ_REDRIVEN_FOR
"""The group that a redriven record is for: the one that failed it. Workers of other groups skip it."""

VALUE_OMITTED: Final = names.DLQ_VALUE_OMITTED
"""The size of a value that was left out because the record was too large for the dead-letter topic."""
HEADERS_OMITTED: Final = names.DLQ_HEADERS_OMITTED
"""The number of the record's own headers that were left out for the same reason."""

ERROR_MESSAGE_CHARACTERS_MAX: Final = 2_000
ERROR_MESSAGE_BYTES_SHORT: Final = names.DLQ_MESSAGE_BYTES_SHORT
TRACEBACK_CHARACTERS_MAX: Final = 8_000


@dataclass(slots=True, frozen=True)
class Origin:
    """Where a record was first read, before any retry or redrive."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """The headers of a dead letter, parsed."""

    origin: Origin
    attempts: int
    error_type: str
    error_message: str
    error_traceback: str
    group: str
    time_ms: int
    redriven: int


def origin_of(message: Message) -> Origin:
    return Origin(message.topic, message.partition, message.offset, message.timestamp_ms)


def dead_letter(
    message: Message,
    error: BaseException,
    *,
    to: str,
    origin: Origin,
    attempts: int,
    group: str,
    now_ms: int,
    redriven: int | None = None,
) -> Send:
    """The record for the dead-letter topic `to`. `redriven` defaults to the count in its header."""
    added: list[Header] = [
        (TOPIC, origin.topic.encode()),
        (PARTITION, b"%d" % origin.partition),
        (OFFSET, b"%d" % origin.offset),
        (TIMESTAMP, b"%d" % origin.timestamp_ms),
        (ATTEMPTS, b"%d" % attempts),
        (ERROR_TYPE, type_name(error).encode(errors="replace")),
        (ERROR_MESSAGE, error_text(error)[:ERROR_MESSAGE_CHARACTERS_MAX].encode(errors="replace")),
        (ERROR_TRACEBACK, _traceback(error).encode(errors="replace")),
        (GROUP, group.encode()),
        (TIME, b"%d" % now_ms),
        (REDRIVEN, b"%d" % (redriven_count(message) if redriven is None else redriven)),
    ]
    return Send(to, message.value, message.key, (*own_headers(message.headers), *added))


def letter_origin(letter: Send) -> str:
    """Where the letter's record was first read, for a log line."""
    headers = dict(header_list(letter.headers))
    topic, partition, offset = (
        (headers.get(name) or b"?").decode(errors="replace") for name in (TOPIC, PARTITION, OFFSET)
    )
    return f"{topic}[{partition}]@{offset}"


def shorter_letter(letter: Send) -> Send | None:
    """A smaller letter, for a topic that refused its size. None if nothing can be left out."""
    headers = tuple(header_list(letter.headers))
    by_name = dict(headers)
    if TOPIC not in by_name:
        return None
    message = by_name.get(ERROR_MESSAGE) or b""
    if ERROR_TRACEBACK in by_name or len(message) > ERROR_MESSAGE_BYTES_SHORT:
        short = message[:ERROR_MESSAGE_BYTES_SHORT].decode(errors="ignore").encode()
        shortened = ((name, short if name == ERROR_MESSAGE else value) for name, value in headers)
        return replace(letter, headers=tuple(each for each in shortened if each[0] != ERROR_TRACEBACK))
    if letter.value is not None:
        return replace(letter, value=None, headers=(*headers, (VALUE_OMITTED, b"%d" % len(letter.value))))
    own = own_headers(headers)
    if own:
        added = tuple(each for each in headers if each[0].startswith(PREFIX))
        return replace(letter, headers=(*added, (HEADERS_OMITTED, b"%d" % len(own))))
    return None


def error_text(error: BaseException) -> str:
    """`str(error)`, even if that raises."""
    try:
        return str(error)
    except Exception as fault:
        return f"<str() of it raised {type(fault).__name__}>"


def error_name(error: BaseException) -> str:
    """`repr(error)` for a log line, even if that raises."""
    try:
        return repr(error)
    except Exception as fault:
        return f"<{type_name(error)}, repr() of it raised {type(fault).__name__}>"


def own_headers(headers: Headers) -> Headers:
    """The headers without those of dead letters."""
    return tuple(each for each in headers if not each[0].startswith(PREFIX))


def redriven_count(message: Message) -> int:
    return _number(message, REDRIVEN, 0)


def read_dead_letter(message: Message) -> DeadLetter:
    """DecodeFailed for a record that is not a dead letter."""
    topic = message.header(TOPIC)
    if topic is None:
        raise DecodeFailed(f"{message} has no header {TOPIC!r}: it is not a dead letter")
    origin = Origin(
        topic.decode(errors="replace"),
        _number(message, PARTITION, -1),
        _number(message, OFFSET, -1),
        _number(message, TIMESTAMP, -1),
    )
    return DeadLetter(
        origin,
        _number(message, ATTEMPTS, 0),
        _text(message, ERROR_TYPE),
        _text(message, ERROR_MESSAGE),
        _text(message, ERROR_TRACEBACK),
        _text(message, GROUP),
        _number(message, TIME, -1),
        redriven_count(message),
    )


def redriven_headers(message: Message, *, group: str = "") -> Headers:
    """The headers of a redriven record: its own, the incremented count, and the only group to process it, if any."""
    target: Headers = ((REDRIVEN_FOR, group.encode()),) if group else ()
    return (*own_headers(message.headers), (REDRIVEN, b"%d" % (redriven_count(message) + 1)), *target)


def _text(message: Message, name: str) -> str:
    return (message.header(name) or b"").decode(errors="replace")


def _number(message: Message, name: str, otherwise: int) -> int:
    try:
        return int(message.header(name) or b"")
    except ValueError:
        return otherwise


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _traceback(error: BaseException) -> str:
    """The end of the traceback, where the fault is."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as fault:
        text = f"<the traceback cannot be formatted: {type(fault).__name__}>"
    return text if len(text) <= TRACEBACK_CHARACTERS_MAX else "…" + text[1 - TRACEBACK_CHARACTERS_MAX :]
