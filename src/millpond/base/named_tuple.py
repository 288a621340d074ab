"""`typing.NamedTuple`, except that the constructor is created with the first value.

A node declares seventy of these. The standard library compiles every field's annotation and every class's constructor
at once; here both wait until they are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    class _Declaration(type):
        """Turns a class statement into a tuple with names."""

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, members)
            assert len(bases) == 1, f"{name}: a named tuple has no other bases; `typing.NamedTuple` takes some"
            fields = tuple(members.get("__annotations__", ()))
            defaults = {each: members[each] for each in fields if each in members}
            assert fields[len(fields) - len(defaults) :] == tuple(defaults), f"{name}: defaults come last"
            made: list[type] = []

            def begin(cls: type, /, *args: object, **kwargs: object) -> Any:
                return _constructor_of(made[0])(cls, *args, **kwargs)

            shared = {"__repr__": _repr, "_make": classmethod(_make), "_replace": _replace, "_asdict": _as_dict}
            own = {each: _tuplegetter(index, None) for index, each in enumerate(fields)} | {
                "__slots__": (),
                "__new__": begin,
                "__getnewargs__": _arguments,
                "__match_args__": fields,
                "_fields": fields,
                "_field_defaults": defaults,
            }
            made.append(type(name, (tuple,), shared | members | own))
            return made[0]

    class NamedTuple(metaclass=_Declaration):
        """The base class to name in a class statement."""


def _constructor_of(cls: Any) -> Any:
    """Create the constructor and store it in the class."""
    scope = {"_new": tuple.__new__} | {f"_{name}": value for name, value in cls._field_defaults.items()}
    parameters = ", ".join(f"{name}=_{name}" if name in cls._field_defaults else name for name in cls._fields)
    values = "".join(f"{name}, " for name in cls._fields)
    exec(f"def __new__(_cls, {parameters}):\n    return _new(_cls, ({values}))", scope)
    made: Any = scope["__new__"]
    made.__qualname__ = f"{cls.__qualname__}.__new__"
    made.__module__ = cls.__module__
    cls.__new__ = staticmethod(made)
    return made


def _make(cls: Any, values: Iterable[Any]) -> Any:
    made = tuple.__new__(cls, values)
    if len(made) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
    return made


def _replace(self: Any, /, **changes: Any) -> Any:
    changed = self._make(map(changes.pop, self._fields, self))
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return changed


def _as_dict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)])
    return f"{self.__class__.__name__}({shown})"


def _arguments(self: Any) -> tuple[Any, ...]:
    return tuple(self)
