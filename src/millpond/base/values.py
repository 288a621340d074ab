"""`dataclasses.dataclass`, except that its code is generated with the first value.

A node declares two hundred such classes and instantiates a few of them at startup. The standard library generates and
compiles several functions for each, which took a third of the startup time. Here functions that classes can share are
shared, and only `__init__` is compiled, after a few values have been made without it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        kw_only: bool = False,
    ) -> Any:
        """The same as `dataclasses.dataclass` with these options; `fields`, `replace` and the like work as usual."""

        def make(cls: type) -> type:
            plan = _plan(cls, frozen, kw_only)
            if plan is None:
                return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only)(cls)
            return _finish(cls, plan, slots=slots, eq=eq)

        return make if cls is None else make(cls)


def names_of(cls: type) -> tuple[str, ...]:
    """The names of the fields; `dataclasses.fields` would generate the class with the standard library."""
    plan: _Plan | None = cls.__dict__.get("__value_plan__")
    return tuple(each.name for each in dataclasses.fields(cls)) if plan is None else tuple(plan.annotations)


FIELDS = "__dataclass_fields__"
_NOTED = (FIELDS, "__dataclass_params__")

_FEW = 8
"""This many values are made without compiling, which takes longer: most classes have one or two values."""


class _Plan:
    """What is known of a class before anything is compiled."""

    __slots__ = ("annotations", "compared", "defaults", "frozen", "kw_only", "made", "own", "positional", "shown")

    def __init__(self, frozen: bool, kw_only: bool) -> None:
        self.frozen = frozen
        self.kw_only = kw_only
        self.annotations: dict[str, Any] = {}
        """Of all fields, those of the bases first."""
        self.defaults: dict[str, Any] = {}
        """Values, or the results of `field`."""
        self.own: list[str] = []
        self.shown: tuple[str, ...] = ()
        self.compared: tuple[str, ...] = ()
        self.positional: tuple[str, ...] = ()
        self.made = 0
        """The number of values made without the compiled constructor."""


def _plan(cls: type, frozen: bool, kw_only: bool) -> _Plan | None:
    """None for a class that only the standard library can generate."""
    plan = _Plan(frozen, kw_only)
    for base in cls.__mro__[-2:0:-1]:
        base_plan = base.__dict__.get("__value_plan__")
        if base_plan is not None and base_plan.kw_only == kw_only:
            plan.annotations |= base_plan.annotations
            plan.defaults |= base_plan.defaults
        elif base_plan is not None or "__dataclass_fields__" in base.__dict__:
            return None
    for name, annotation in inspect.get_annotations(cls).items():
        if not isinstance(annotation, str) or annotation.startswith(("InitVar", "KW_ONLY", "dataclasses.")):
            return None
        if not annotation.startswith(("ClassVar", "typing.ClassVar")):
            plan.annotations[name] = annotation
            plan.own.append(name)
            plan.defaults.pop(name, None)
            if name in cls.__dict__:
                plan.defaults[name] = cls.__dict__[name]
    options = {name: each for name, each in plan.defaults.items() if isinstance(each, dataclasses.Field)}
    names = tuple(plan.annotations)
    plan.shown = tuple(name for name in names if name not in options or options[name].repr)
    plan.compared = tuple(name for name in names if name not in options or options[name].compare)
    if any(each.hash is not None for each in options.values()):
        return None
    plan.positional = tuple(
        name
        for name in names
        if not kw_only and (name not in options or (options[name].init and options[name].kw_only is not True))
    )
    is_late = False
    for name in plan.positional:
        has_default = name in plan.defaults and _has_default(plan.defaults[name])
        if is_late and not has_default:
            raise TypeError(f"non-default argument {name!r} follows default argument")
        is_late |= has_default
    return plan


def _has_default(default: Any) -> bool:
    if not isinstance(default, dataclasses.Field):
        return True
    return default.default is not dataclasses.MISSING or default.default_factory is not dataclasses.MISSING


def _finish(cls: type, plan: _Plan, *, slots: bool, eq: bool) -> type:
    names = tuple(plan.annotations)
    members: dict[str, Any] = dict(cls.__dict__)
    for name in plan.own:
        default = members.get(name)
        if slots or isinstance(default, dataclasses.Field):
            members.pop(name, None)
            if not slots and default is not None and default.default is not dataclasses.MISSING:
                members[name] = default.default
    made: dict[str, Any] = {"__value_plan__": plan, **{name: _Late(name) for name in _NOTED}}
    made["__match_args__"] = members.get("__match_args__", plan.positional)
    if "__repr__" not in members:
        made["__repr__"] = _repr
    is_own_equal = "__eq__" in members
    has_hash = "__hash__" in members and not (members["__hash__"] is None and is_own_equal)
    if eq:
        made["__value_of__"] = staticmethod(_getter(plan.compared))
        if not is_own_equal:
            made["__eq__"] = _eq
        if not has_hash:
            made["__hash__"] = _hash if plan.frozen else None
    if plan.frozen and slots and "__getstate__" not in members:
        made |= {"__getstate__": _get_state, "__setstate__": _set_state}
    owner: list[type] = []
    if "__init__" not in members:

        def begin(self: object, *args: object, **kwargs: object) -> None:
            plan.made += 1
            if plan.made > _FEW or not _fill(self, plan, args, kwargs):
                _init_of(owner[0])(self, *args, **kwargs)

        made["__init__"] = begin
    if plan.frozen:
        made |= _guards(owner, frozenset(names))
    if slots:
        inherited = {name for base in cls.__mro__[1:-1] for name in base.__dict__.get("__slots__", ())}
        members["__slots__"] = tuple(name for name in names if name not in inherited)
        members.pop("__dict__", None)
        members.pop("__weakref__", None)
        qualname = cls.__qualname__
        cls = type(cls)(cls.__name__, cls.__bases__, members | made)
        cls.__qualname__ = qualname
    else:
        for name in plan.own:
            if name in cls.__dict__ and name not in members:
                delattr(cls, name)
            elif name in members and members[name] is not cls.__dict__.get(name):
                setattr(cls, name, members[name])
        for name, each in made.items():
            setattr(cls, name, each)
    owner.append(cls)
    return cls


def _fill(self: object, plan: _Plan, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Do what the constructor would do; False if it would raise."""
    values = dict(zip(plan.positional, args, strict=False))
    if len(args) > len(plan.positional) or not values.keys().isdisjoint(kwargs):
        return False
    values |= kwargs
    put = object.__setattr__ if plan.frozen else setattr
    for name in plan.annotations:
        default: Any = plan.defaults.get(name, dataclasses.MISSING)
        make: Any = dataclasses.MISSING
        is_given = True
        if isinstance(default, dataclasses.Field):
            is_given, make, default = default.init, default.default_factory, default.default
        if name in values:
            if not is_given:
                return False
            put(self, name, values.pop(name))
        elif make is not dataclasses.MISSING:
            put(self, name, make())
        elif default is not dataclasses.MISSING:
            put(self, name, default)
        elif is_given:
            return False
    if values:
        return False
    if hasattr(self, "__post_init__"):
        self.__post_init__()
    return True


def _init_of(cls: type) -> Callable[..., None]:
    """Compile the constructor and store it in the class.

    Its own names start with two underscores, so that they do not clash with fields.
    """
    plan: _Plan = cls.__dict__["__value_plan__"]
    scope: dict[str, Any] = {"__unset": object(), "__set": object.__setattr__}
    positional: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    for name in plan.annotations:
        default = plan.defaults.get(name, dataclasses.MISSING)
        is_given, is_by_name, value = True, plan.kw_only, name
        if isinstance(default, dataclasses.Field):
            is_given, is_by_name = default.init, default.kw_only is True or plan.kw_only
            if default.default_factory is not dataclasses.MISSING:
                scope[f"__make_{name}"] = default.default_factory
                value = f"__make_{name}() if {name} is __unset else {name}" if is_given else f"__make_{name}()"
                scope[f"__is_{name}"], default = scope["__unset"], None
            else:
                default = default.default
        has_default = default is not dataclasses.MISSING
        if has_default:
            scope.setdefault(f"__is_{name}", default)
        if is_given:
            (by_name if is_by_name else positional).append(f"{name}=__is_{name}" if has_default else name)
        elif not has_default:
            continue
        elif value == name:
            value = f"__is_{name}"
        lines.append(f"    __set(self, {name!r}, {value})" if plan.frozen else f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    words = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    exec(
        compile("\n".join([f"def __init__({words}):", *(lines or ["    pass"])]), f"<{cls.__qualname__}>", "exec"),
        scope,
    )
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    cls.__init__ = made  # type: ignore[misc]
    return made


class _Late:
    """The standard library's attributes of a dataclass, generated on first access."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, value: object, cls: type) -> Any:
        owner = next(each for each in cls.__mro__ if "__value_plan__" in each.__dict__)
        noted = _by_library(owner, with_guards=self._name != FIELDS).__dict__[self._name]
        setattr(owner, self._name, noted)
        return noted


def _by_library(cls: type, *, with_guards: bool) -> type:
    """A class with the same fields, generated by the standard library, to copy its attributes."""
    plan: _Plan = cls.__dict__["__value_plan__"]
    members: dict[str, Any] = {
        "__annotations__": dict(plan.annotations),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__ or "",
        **plan.defaults,
    }
    make = dataclasses.dataclass(
        frozen=plan.frozen and with_guards, kw_only=plan.kw_only, init=False, repr=False, eq=False, match_args=False
    )
    return make(type(cls.__name__, (), members))


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns these attributes of a value as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return lambda value: (get(value),)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__value_plan__.shown])
    return f"{self.__class__.__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    value_of = self.__value_of__
    return value_of(self) == value_of(other)


def _hash(self: Any) -> int:
    return hash(self.__value_of__(self))


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__value_plan__.annotations]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__value_plan__.annotations, state, strict=True):
        object.__setattr__(self, name, value)


def _guards(owner: list[Any], names: frozenset[str]) -> dict[str, Any]:
    """The methods that keep a frozen value from being changed."""

    def refuse_change(self: object, name: str, value: object) -> None:
        if self.__class__ is owner[0] or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(owner[0], self).__setattr__(name, value)

    def refuse_removal(self: object, name: str) -> None:
        if self.__class__ is owner[0] or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(owner[0], self).__delattr__(name)

    return {"__setattr__": refuse_change, "__delattr__": refuse_removal}
