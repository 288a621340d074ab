"""A `dataclass` of our own is what the standard library would have made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, field
from threading import Barrier
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base import values

T = TypeVar("T")

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("dataclass", [values.dataclass, dataclasses.dataclass], ids=["ours", "library"])

OPTIONS = st.fixed_dictionaries(
    {}, optional={"frozen": st.booleans(), "slots": st.booleans(), "eq": st.booleans(), "kw_only": st.booleans()}
)
DEFAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: dataclasses.MISSING,
    "value": lambda: 7,
    "no value": lambda: None,
    "factory": lambda: field(default_factory=list),
    "unseen": lambda: field(default=1, compare=False, repr=False),
    "by name": lambda: field(default=2, kw_only=True),
    "not given": lambda: field(default=3, init=False),
    "made": lambda: field(default_factory=dict, init=False),
}
LISTS = st.lists(st.sampled_from(sorted(DEFAULTS)), max_size=5)


def declared(dataclass: Make, kinds: list[str], options: dict[str, bool], base: type = object) -> Any:
    """A class with one field of each of these kinds."""
    members: dict[str, Any] = {"__module__": __name__, "__qualname__": "Pond", "__annotations__": {}}
    for number, kind in enumerate(kinds):
        name = f"{'b' if base is not object else 'a'}{number}"
        members["__annotations__"][name] = "object"
        if (default := DEFAULTS[kind]()) is not dataclasses.MISSING:
            members[name] = default
    return dataclass(**options)(type("Pond", () if base is object else (base,), members))


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as fault:
        return type(fault)


def facts(cls: Any, arguments: list[int]) -> list[Any]:
    """All that one can see of a class and of two values of it."""
    first = outcome(lambda: cls(*arguments))
    if isinstance(first, type):
        return [first]
    second, names = cls(*arguments), [each.name for each in dataclasses.fields(cls)]
    return [
        repr(first),
        first == second,
        first == 0,
        outcome(lambda: hash(first) == hash(second)),
        cls.__hash__ is None,
        cls.__match_args__,
        [(each.name, each.init, each.kw_only, each.compare, each.repr) for each in dataclasses.fields(first)],
        dataclasses.asdict(first),
        hasattr(first, "__dict__"),
        [outcome(lambda name=name: setattr(first, name, 9)) for name in names],
        [outcome(lambda name=name: getattr(first, name)) for name in names],
        outcome(lambda: delattr(first, names[0])) if names else None,
        [outcome(lambda name=name: repr(dataclasses.replace(second, **{name: 5}))) for name in names],
        outcome(lambda: repr(copy.copy(second))),
        outcome(lambda: repr(copy.deepcopy(second))),
    ]


@given(LISTS, OPTIONS, st.integers(0, 6), LISTS, st.booleans())
def test_it_is_what_the_library_makes(kinds, options, count, more, is_derived):
    made = [
        outcome(lambda each=each: declared(each, kinds, options))
        for each in (values.dataclass, dataclasses.dataclass)
    ]
    if is_derived and not any(map(_is_fault, made)):
        ours, theirs = (
            outcome(lambda each=each, base=base: declared(each, more, options, base))
            for each, base in zip((values.dataclass, dataclasses.dataclass), made, strict=True)
        )
    else:
        ours, theirs = made
    if _is_fault(theirs) or _is_fault(ours):
        # Fields without a default after some with one.
        assert ours is theirs
        return
    arguments = list(range(count))
    expected = facts(theirs, arguments)
    assert facts(ours, arguments) == expected
    for _ in range(values._FEW):
        outcome(lambda: ours(*arguments))
    assert facts(ours, arguments) == expected, "with a constructor that was compiled"


def _is_fault(made: type) -> bool:
    return issubclass(made, Exception)


@values.dataclass(frozen=True, slots=True)
class Sluice(Generic[T]):
    """A value that can be sent elsewhere."""

    LIMIT: ClassVar[int] = 3
    width: T
    gates: list[int] = field(default_factory=list)
    is_open: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_open", bool(self.gates))


def test_a_value_travels():
    sluice = Sluice(4, [1])
    assert pickle.loads(pickle.dumps(sluice)) == sluice
    assert sluice.is_open
    assert not Sluice(4).is_open
    assert Sluice.LIMIT == 3
    assert Sluice(4).gates is not Sluice(4).gates
    match sluice:
        case Sluice(width, gates):
            assert (width, gates) == (4, [1])


def test_a_frozen_value_stays_as_it_is():
    with pytest.raises(FrozenInstanceError):
        Sluice(1).width = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del Sluice(1).width


@BOTH
def test_what_the_class_has_itself_stays(dataclass):
    @dataclass(frozen=True)
    class Own:
        name: str

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "own"

    assert Own("a") == Own("b")
    assert hash(Own("a")) == 1
    assert repr(Own("a")) == "own"


@pytest.mark.parametrize("base", [values.dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("derived", [values.dataclass, dataclasses.dataclass])
def test_either_can_be_the_base_of_the_other(base, derived):
    @base(frozen=True, slots=True)
    class Water:
        depth: int
        is_cold: bool = True

    @derived(frozen=True, slots=True)
    class Lake(Water):
        name: str = "weir"

    lake = Lake(3, name="pond")
    assert (lake.depth, lake.is_cold, lake.name) == (3, True, "pond")
    assert [each.name for each in dataclasses.fields(lake)] == ["depth", "is_cold", "name"]
    assert dataclasses.replace(lake, depth=4) == Lake(4, True, "pond")
    assert values.names_of(Lake) == ("depth", "is_cold", "name")


@BOTH
@pytest.mark.parametrize("frozen", [False, True])
def test_a_field_may_have_any_name(dataclass, frozen):
    """Also one by which the code of the constructor might go."""

    @dataclass(frozen=frozen)
    class Pond:
        other: list[int] = field(default_factory=lambda: [1])
        set: int = 2
        _set: int = 3
        make_other: int = 4
        UNSET: int = 5
        unset: int = 6
        _other: int = 7
        is_other: int = 8
        made: int = field(default=9, init=False)
        _made: int = 10

    assert list(dataclasses.asdict(Pond()).values()) == [[1], 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert list(dataclasses.asdict(Pond([], *range(8))).values()) == [[], *range(7), 9, 7]


def test_those_who_make_the_first_value_at_once_make_the_same():
    for _ in range(50):

        @values.dataclass(frozen=True, slots=True)
        class Pond:
            name: str
            depths: list[int] = field(default_factory=list)

        start = Barrier(4)

        def make(kind: Any = Pond, start: Barrier = start) -> Any:
            start.wait()
            return kind("a", depths=[1]), dataclasses.fields(kind), dataclasses.replace(kind("b"), name="a")

        with ThreadPoolExecutor(4) as threads:
            made = [each.result(60) for each in [threads.submit(make) for _ in range(4)]]
        assert {each[0].name for each in made} == {"a"}
        assert all(each[0] == made[0][0] and each[2] == made[0][2] for each in made)
        assert all([one.name for one in each[1]] == ["name", "depths"] for each in made)


def test_a_value_that_holds_itself_can_be_shown():
    @values.dataclass
    class Loop:
        inner: Any = None

    loop = Loop()
    loop.inner = loop
    assert repr(loop).endswith("Loop(inner=...)")
