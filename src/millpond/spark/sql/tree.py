"""The parse tree: the names that a text uses, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Name(NamedTuple):
    """A column, or a path that begins with one: `total`, `input.total`, `customer.address.city`."""

    parts: tuple[str, ...]
    at: int


@dataclass(slots=True)
class Expression:
    """One expression: the names that it needs, and the name of its column."""

    names: list[Name] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    alias: str | None = None
    """The declared alias, or the name of a plain column; None if Spark generates one."""
    star: tuple[str, ...] | None = None
    """`*` is (), `t.*` is ("t",)."""
    without: tuple[str, ...] = ()
    """The columns of `* except (…)`."""
    is_open: bool = False
    """Whether it may produce several columns, whose names only Spark knows."""


@dataclass(slots=True)
class Table:
    """A reference to a table by name."""

    parts: tuple[str, ...]
    at: int


@dataclass(slots=True)
class TableFunction:
    """Rows from a table function: `range(10)`, `explode(items)`."""

    arguments: Expression


RowSource: TypeAlias = "Table | TableFunction | Query"


@dataclass(slots=True)
class Relation:
    """Named rows in a FROM clause."""

    rows: RowSource
    alias: str | None = None
    columns: tuple[str, ...] = ()
    """Column names from its alias: `t(a, b)`."""


@dataclass(slots=True)
class Select:
    items: list[Expression]
    relations: list[Relation]
    on: list[Expression]
    """Conditions of joins, and the columns of USING."""
    where: list[Expression]
    after: list[Expression]
    """GROUP BY, HAVING and QUALIFY, which can use the aliases of the items."""


@dataclass(slots=True)
class Query:
    """Selects joined by set operations, with the clauses around them."""

    selects: list[Select | Query]
    ctes: list[tuple[str, tuple[str, ...], Query]] = field(default_factory=list)
    after: list[Expression] = field(default_factory=list)
    """ORDER BY, LIMIT and similar clauses."""
