"""Topic and header names with a meaning, and suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DEAD_LETTERS_ENDING: Final = ".dlq"
"""The suffix of dead-letter topics. A topic with this suffix is assumed to hold dead letters."""

DLQ_PREFIX: Final = "dlq."
"""All headers of dead letters begin with it. What they mean is in docs/dead-letters.md."""
DLQ_TOPIC: Final = "dlq.topic"
DLQ_PARTITION: Final = "dlq.partition"
DLQ_OFFSET: Final = "dlq.offset"
DLQ_TIMESTAMP: Final = "dlq.timestamp"
DLQ_ATTEMPTS: Final = "dlq.attempts"
DLQ_ERROR_TYPE: Final = "dlq.error.type"
DLQ_ERROR_MESSAGE: Final = "dlq.error.message"
DLQ_ERROR_TRACEBACK: Final = "dlq.error.traceback"
DLQ_GROUP: Final = "dlq.group"
DLQ_TIME: Final = "dlq.time"
DLQ_REDRIVEN: Final = "dlq.redriven"
DLQ_REDRIVEN_FOR: Final = "dlq.redriven.for"
DLQ_VALUE_OMITTED: Final = "dlq.value.omitted"
DLQ_HEADERS_OMITTED: Final = "dlq.headers.omitted"
DLQ_MESSAGE_BYTES_SHORT: Final = 200
"""What is left of an error message in a letter that is too large for its topic."""

DELIVER_AT_HEADER: Final = "queue.deliver-at"
"""The time before which no member of a share group receives the record: decimal milliseconds since 1970."""
PRIORITY_HEADER: Final = "queue.priority"
"""One digit, 0 to 9: groups with `share.priority.enable` receive higher ones first."""
PRIORITY_MAX: Final = 9


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: a suggestion, if a known name is similar."""
    import difflib

    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else "."
