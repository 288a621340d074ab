"""A client library's raw messages into message objects, the plain twin of `_messages`.

The library is not imported here: a raw message has `error()`, `topic()`, `partition()`, `offset()`, `timestamp()`,
`key()`, `value()` and `headers()`. The result is a class with slots of these names (the time is `timestamp_ms`),
which may be frozen.
"""

from __future__ import annotations

from functools import cache
from operator import methodcaller
from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")

Run: TypeAlias = tuple[str, int, int]
"""Topic and partition of consecutive messages, and the offset after the last of them."""

Headers: TypeAlias = tuple[tuple[str, "bytes | None"], ...]

UNREADABLE_NAME = "\ufffd"
"""Replaces a header name whose bytes the library did not return."""

SLOTS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


def read_messages(raws: list[Any], kind: type[T], into: list[T]) -> list[Run | Any]:
    """Append a `kind` for each raw message to `into`, and remove those from `raws`.

    Returns what happened, in order: a run of messages of one partition as a tuple, and raw messages with an error as
    they are.
    """
    events: list[Run | Any] = []
    fresh_kind = _fresh(cast(Any, kind))
    run_topic: str | None = None
    run_partition = offset = -1
    raws.reverse()
    while raws:
        # Freed one by one: the number of objects stays constant, so the garbage collector is not triggered.
        raw = raws.pop()
        if raw.error() is not None:
            if run_topic is not None:
                events.append((run_topic, run_partition, offset + 1))
                run_topic = None
            events.append(raw)
            continue
        topic, partition = raw.topic(), raw.partition()
        if partition != run_partition or topic != run_topic:
            if run_topic is not None:
                events.append((run_topic, run_partition, offset + 1))
            run_topic, run_partition = topic, partition
        offset = raw.offset()
        made = fresh_kind(
            run_topic,
            partition,
            offset,
            raw.timestamp()[1],
            raw.key(),
            raw.value(),
            read_headers(raw),
        )
        made.__class__ = kind
        into.append(made)
    if run_topic is not None:
        events.append((run_topic, run_partition, offset + 1))
    return events


# Called through C, which notices at once if a result comes with an exception; the interpreter's own call may not.
_headers_of = methodcaller("headers")


def read_headers(raw: Any) -> Headers:
    """The headers of a raw message, whatever bytes their names are."""
    try:
        headers = _headers_of(raw)
    except (UnicodeDecodeError, SystemError) as fault:
        return repaired_headers(raw, fault)
    return tuple(headers) if headers else ()


def repaired_headers(raw: Any, fault: UnicodeDecodeError | SystemError) -> Headers:
    """The headers of a raw message with a name that is not UTF-8: bytes that cannot be decoded become U+FFFD.

    confluent-kafka raises `fault` the first time, and then returns pairs whose first item is a null pointer. Touching
    that item crashes the interpreter; only the pair's representation is safe.
    """
    decoding: BaseException | None = fault
    while decoding is not None and not isinstance(decoding, UnicodeDecodeError):
        # Each layer of C calls adds its own SystemError.
        decoding = decoding.__cause__
    if decoding is None:
        raise fault
    try:
        pairs = _headers_of(raw) or ()
    except (UnicodeDecodeError, SystemError):
        return ()
    is_unreadable = [repr(pair).startswith("(<NULL>") for pair in pairs]
    # The error is about one name. With several it does not say which.
    is_known = is_unreadable.count(True) == 1
    name = bytes(decoding.object).decode(errors="replace") if is_known else UNREADABLE_NAME
    return tuple((name, pair[1]) if bad else pair for pair, bad in zip(pairs, is_unreadable, strict=True))


@cache
def _fresh(kind: Any) -> Any:
    """A message that can still be written to. Creating frozen ones is five times slower, so a mutable one is
    filled and then becomes a `kind`."""
    assert kind.__slots__ == SLOTS, f"{kind} has other slots than {SLOTS}"

    class Fresh:
        __slots__ = SLOTS

        def __init__(
            self, topic: str, partition: int, offset: int, timestamp_ms: int, key: Any, value: Any, headers: Any
        ) -> None:
            self.topic = topic
            self.partition = partition
            self.offset = offset
            self.timestamp_ms = timestamp_ms
            self.key = key
            self.value = value
            self.headers = headers

    return Fresh
