"""Messages of what a client library has read: both twins, the same answers."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.wire.kernel import messages as plain
from support.twins import compiled, needs

fast = compiled("_messages")
needs_fast = needs(fast)


@dataclass(slots=True, frozen=True)
class Made:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(eq=False)
class Raw:
    """As librdkafka gives it: a record, or news."""

    fields: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None

    def error(self) -> str | None:
        return self.fault

    def topic(self) -> str:
        return self.fields["topic"]

    def partition(self) -> int:
        return self.fields["partition"]

    def offset(self) -> int:
        return self.fields["offset"]

    def timestamp(self) -> tuple[int, int]:
        return 1, self.fields["timestamp_ms"]

    def key(self) -> bytes | None:
        return self.fields["key"]

    def value(self) -> bytes | None:
        return self.fields["value"]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.fields["headers"]) or None


class OtherRaw(Raw):
    """Of another type, with another answer."""

    def value(self) -> bytes | None:
        return b"other"


def a_raw(topic: str = "t", partition: int = 0, offset: int = 0) -> Raw:
    named = {"topic": topic, "partition": partition, "offset": offset, "timestamp_ms": 5, "key": None}
    return Raw(named | {"value": b"v", "headers": ()})


def test_runs_and_news_come_in_their_order(kernel: Any) -> None:
    news = Raw(fault="the end")
    raws = [a_raw(offset=3), a_raw(offset=7), news, a_raw(offset=8), a_raw("t", 1, 2), a_raw("u", 1, 4)]
    into: list[Made] = []
    assert kernel.read_messages(raws, Made, into) == [("t", 0, 8), news, ("t", 0, 9), ("t", 1, 3), ("u", 1, 5)]
    assert [(each.topic, each.partition, each.offset) for each in into] == [
        ("t", 0, 3),
        ("t", 0, 7),
        ("t", 0, 8),
        ("t", 1, 2),
        ("u", 1, 4),
    ]
    assert raws == []


def test_nothing_is_nothing(kernel: Any) -> None:
    into = [Made("t", 0, 1, 2, None, None)]
    assert kernel.read_messages([], Made, into) == []
    assert len(into) == 1


def test_each_raw_message_is_freed_when_it_has_been_read(kernel: Any) -> None:
    alive: list[int] = []

    class Watched(Raw):
        def error(self) -> None:
            alive.append(sum(each() is not None for each in watched))

    raws: list[Raw] = [Watched(a_raw(offset=offset).fields) for offset in range(3)]
    watched = [weakref.ref(each) for each in raws]
    gc.disable()
    try:
        kernel.read_messages(raws, Made, [])
    finally:
        gc.enable()
    # The one before may still be in a variable.
    assert alive[0] == 3
    assert alive[-1] <= 2


def test_a_class_with_other_slots_is_refused(kernel: Any) -> None:
    class Other:
        __slots__ = ("topic",)

    with pytest.raises(AssertionError):
        kernel.read_messages([a_raw()], Other, [])


def test_what_is_made_is_as_frozen_as_any_other(kernel: Any) -> None:
    into: list[Made] = []
    kernel.read_messages([a_raw()], Made, into)
    assert into == [Made("t", 0, 0, 5, None, b"v")]
    with pytest.raises(AttributeError):
        into[0].offset = 1  # type: ignore[misc]


binaries = st.none() | st.binary(max_size=4)
records = st.builds(
    lambda kind, **fields: kind(fields),
    st.sampled_from([Raw, OtherRaw]),
    topic=st.sampled_from(["t", "u", ""]),
    partition=st.integers(0, 2),
    offset=st.integers(0, (1 << 63) - 2),
    timestamp_ms=st.integers(-1, 1 << 50),
    key=binaries,
    value=binaries,
    headers=st.lists(st.tuples(st.text(max_size=3), binaries), max_size=2),
)


@needs_fast
@given(st.lists(records | st.builds(Raw, fault=st.just("news")), max_size=12))
def test_twins_agree(raws: list[Raw]) -> None:
    ours: list[Made] = []
    theirs: list[Made] = []
    assert plain.read_messages(list(raws), Made, ours) == fast.read_messages(list(raws), Made, theirs)
    assert ours == theirs
    assert len(ours) == sum(raw.fault is None for raw in raws)
