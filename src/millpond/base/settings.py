"""Settings are declared once; the command line, DescribeConfigs, validation and docs use the declaration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from math import isfinite
from typing import Generic, TypeVar, cast

from millpond.base.values import dataclass

Value = bool | int | float | str | tuple[str, ...]
V = TypeVar("V", bool, int, float, str, tuple[str, ...])

Check = Callable[[Value], str | None]
"""Returns what is wrong with a value, or None."""


_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")


class Kind(Enum):
    """The type of a setting as DescribeConfigs reports it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class SettingError(ValueError):
    """An invalid value or name; the message says what is valid."""


@dataclass(frozen=True, eq=False)
class Setting(Generic[V]):
    """One setting: its name on the wire and in files, default, what it does, what it accepts.

    `inherits` names the node's setting that gives the default of a topic's setting, as `log.retention.ms` gives
    that of `retention.ms`. `live` settings may change while the node runs. `bits` is the width of an integer, which
    tools see as its type.
    """

    name: str
    default: V
    doc: str
    check: Check | None = None
    inherits: str | None = None
    live: bool = False
    internal: bool = False
    bits: int = 64

    @property
    def kind(self) -> Kind:
        match self.default:
            case bool():
                return Kind.BOOLEAN
            case int():
                return Kind.INT if self.bits == 32 else Kind.LONG
            case float():
                return Kind.DOUBLE
            case tuple():
                return Kind.LIST
            case _:
                return Kind.STRING

    def parse(self, text: str) -> V:
        """Parse and check text from a user, a file or the wire."""
        value = self._read(text.strip())
        fault = self.check(value) if self.check else None
        if fault:
            raise SettingError(f"{self.name}={text}: {fault}")
        return value

    def _read(self, text: str) -> V:
        value: Value
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise SettingError(f"{self.name}={text}: must be true or false")
                value = text.lower() == "true"
            case Kind.LONG | Kind.INT:
                # int() alone would also accept "1_000" and non-ASCII digits, which no other tool reads.
                if not _WHOLE_NUMBER.fullmatch(text):
                    raise SettingError(f"{self.name}={text}: must be a whole number")
                value = int(text)
                if not -(1 << self.bits - 1) <= value < 1 << self.bits - 1:
                    raise SettingError(f"{self.name}={text}: must fit in {self.bits} bits")
            case Kind.DOUBLE:
                try:
                    value = float(text)
                except ValueError:
                    raise SettingError(f"{self.name}={text}: must be a number") from None
                if not isfinite(value):
                    raise SettingError(f"{self.name}={text}: must be a finite number")
            case Kind.LIST:
                value = tuple(part.strip() for part in text.split(",") if part.strip())
            case Kind.STRING:
                value = text
        return cast(V, value)

    def show(self, value: Value) -> str:
        """The value as the wire and files write it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def at_least(minimum: float) -> Check:
    return lambda value: (
        None if isinstance(value, int | float) and value >= minimum else f"must be at least {minimum}"
    )


def between(minimum: float, maximum: float) -> Check:
    return lambda value: (
        None
        if isinstance(value, int | float) and minimum <= value <= maximum
        else f"must be from {minimum} to {maximum}"
    )


def one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def each_of(*choices: str) -> Check:
    """Every element of a list is one of `choices`, none twice."""
    return lambda value: (
        None
        if isinstance(value, tuple) and all(part in choices for part in value) and len(set(value)) == len(value)
        else f"must be a list of {', '.join(choices)}, each at most once"
    )


class Registry:
    """All settings of one scope (the node, a topic), by name, in the order of declaration."""

    def __init__(self, what: str, settings: Iterable[AnySetting]) -> None:
        self.what = what
        self._by_name: dict[str, AnySetting] = {}
        for setting in settings:
            assert setting.name not in self._by_name, f"{setting.name} is declared twice"
            assert setting.check is None or setting.check(setting.default) is None, setting.name
            self._by_name[setting.name] = setting

    def __iter__(self) -> Iterator[AnySetting]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> AnySetting:
        """The setting of this name; the error for an unknown name suggests the nearest one."""
        setting = self._by_name.get(name)
        if setting is None:
            from difflib import get_close_matches  # rarely needed, and startup is faster without it

            near = get_close_matches(name, self._by_name, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"unknown {self.what} setting {name}{hint}")
        return setting


AnySetting = Setting[bool] | Setting[int] | Setting[float] | Setting[str] | Setting[tuple[str, ...]]


class Settings:
    """Values over a registry: what was set, else the default."""

    def __init__(self, registry: Registry, overrides: Mapping[str, Value] | None = None) -> None:
        self.registry = registry
        self.overrides: dict[str, Value] = dict(overrides or {})

    def __getitem__(self, setting: Setting[V]) -> V:
        return cast(V, self.overrides.get(setting.name, setting.default))

    @classmethod
    def parsed(cls, registry: Registry, texts: Mapping[str, str]) -> Settings:
        return cls(registry, {name: registry.get(name).parse(text) for name, text in texts.items()})
