"""A `NamedTuple` of our own is what the standard library would have made."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base import named_tuple


class Ours(named_tuple.NamedTuple):
    """Where a duck swims."""

    pond: str
    depth: int = 3
    ducks: tuple[str, ...] = ()

    @property
    def is_deep(self) -> bool:
        return self.depth > 2

    def deeper(self) -> Ours:
        return self._replace(depth=self.depth + 1)


class Library(typing.NamedTuple):
    """Where a duck swims."""

    pond: str
    depth: int = 3
    ducks: tuple[str, ...] = ()

    @property
    def is_deep(self) -> bool:
        return self.depth > 2

    def deeper(self) -> Library:
        return self._replace(depth=self.depth + 1)


def outcome(work: Callable[[], Any]) -> Any:
    try:
        found = work()
    except Exception as fault:
        return type(fault)
    return repr(found).replace("Library", "Ours"), found


STEPS: dict[str, Callable[[Any], Any]] = {
    "positional": lambda kind: kind("mill", 4),
    "by name": lambda kind: kind(depth=1, pond="mill"),
    "too few": lambda kind: kind(),
    "too many": lambda kind: kind("mill", 1, (), 2),
    "unknown": lambda kind: kind("mill", width=2),
    "make": lambda kind: kind._make(["mill", 2, ()]),
    "make too few": lambda kind: kind._make(["mill"]),
    "replace": lambda kind: kind("mill")._replace(depth=9, pond="village"),
    "replace unknown": lambda kind: kind("mill")._replace(width=9),
    "as dict": lambda kind: kind("mill")._asdict(),
    "fields": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, kind.__slots__),
    "hints": lambda kind: get_type_hints(kind),
    "doc": lambda kind: kind.__doc__,
    "bases": lambda kind: (kind.__bases__, kind.__module__),
    "methods": lambda kind: (kind("mill").is_deep, kind("mill").deeper()),
    "equal": lambda kind: (kind("mill") == ("mill", 3, ()), hash(kind("mill")) == hash(("mill", 3, ()))),
    "order": lambda kind: sorted([kind("b"), kind("a")]),
    "no attribute": lambda kind: setattr(kind("mill"), "width", 1),
    "no change": lambda kind: setattr(kind("mill"), "pond", "village"),
    "copy": lambda kind: copy.deepcopy(kind("mill")),
    "pickle": lambda kind: pickle.loads(pickle.dumps(kind("mill", 2))),
}


@pytest.mark.parametrize("step", STEPS)
def test_it_does_what_the_library_does(step: str) -> None:
    assert outcome(lambda: STEPS[step](Ours)) == outcome(lambda: STEPS[step](Library))


def test_a_pattern_takes_it_apart() -> None:
    match Ours("mill", 5):
        case Ours(pond, depth):
            assert (pond, depth) == ("mill", 5)


@given(st.lists(st.booleans(), max_size=12), st.data())
def test_any_fields_and_arguments(has_default: list[bool], data: st.DataObject) -> None:
    fields = {f"f{number}": number for number in range(len(has_default))}
    optional = sum(has_default)
    defaults = {name: number for name, number in fields.items() if number >= len(fields) - optional}

    def declared(base: Any) -> Any:
        members = {"__annotations__": dict.fromkeys(fields, "int"), "__module__": __name__, **defaults}
        return type(base)("Ours", (base,), members) if base is named_tuple.NamedTuple else _by_library(members)

    positional = data.draw(st.lists(st.integers(), max_size=len(fields) + 1))
    by_name = data.draw(st.dictionaries(st.sampled_from([*fields, "other"]), st.integers()))
    ours, library = declared(named_tuple.NamedTuple), declared(typing.NamedTuple)
    for _ in range(2):  # the first call makes the constructor
        assert outcome(lambda: ours(*positional, **by_name)) == outcome(lambda: library(*positional, **by_name))


def _by_library(members: dict[str, Any]) -> Any:
    return typing.NamedTupleMeta("Ours", (typing._NamedTuple,), members)  # type: ignore[attr-defined]


def test_a_subclass_creates_its_own_type() -> None:
    class Wide(Ours):
        pass

    assert type(Wide("mill")) is Wide
    assert type(Ours("mill")) is Ours
    assert type(Wide("mill")._replace(depth=1)) is Wide
