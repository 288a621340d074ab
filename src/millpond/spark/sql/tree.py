"""What is kept of a parsed text: the names that it uses, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Name(NamedTuple):
    """A column, or a path that begins with one: `total`, `input.total`, `customer.address.city`."""

    parts: tuple[str, ...]
    at: int


@dataclass(slots=True)
class Expression:
    """One expression: what it needs, and what its column would be called."""

    names: list[Name] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    alias: str | None = None
    """As written, or that of a plain column; None if Spark makes one up."""
    star: tuple[str, ...] | None = None
    """`*` is (), `t.*` is ("t",)."""
    without: tuple[str, ...] = ()
    """The columns of `* except (…)`."""
    is_open: bool = False
    """It may give several columns, whose names only Spark knows."""


@dataclass(slots=True)
class Table:
    """A table by its name."""

    parts: tuple[str, ...]
    at: int


@dataclass(slots=True)
class Made:
    """Rows that a function makes: `range(10)`, `explode(items)`."""

    arguments: Expression


RowSource: TypeAlias = "Table | Made | Query"


@dataclass(slots=True)
class Relation:
    """Rows under a name, in a FROM."""

    rows: RowSource
    alias: str | None = None
    columns: tuple[str, ...] = ()
    """What its alias calls them: `t(a, b)`."""


@dataclass(slots=True)
class Select:
    items: list[Expression]
    relations: list[Relation]
    on: list[Expression]
    """Conditions of joins, and the columns of USING."""
    where: list[Expression]
    after: list[Expression]
    """GROUP BY, HAVING and QUALIFY: these know what the items are called."""


@dataclass(slots=True)
class Query:
    """Selects that are put together, and what stands around them."""

    selects: list[Select | Query]
    ctes: list[tuple[str, tuple[str, ...], Query]] = field(default_factory=list)
    after: list[Expression] = field(default_factory=list)
    """ORDER BY, LIMIT and their like."""
