"""Finds the columns that a query returns, and those that it uses but that do not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from millpond.columns.tokens import where
from millpond.spark.sql.expressions import ExpressionParser
from millpond.spark.sql.queries import QueryParser
from millpond.spark.sql.tree import Expression, Name, Query, Relation, Select, Table, TableFunction

Columns: TypeAlias = tuple[str, ...] | None
"""The names of columns; None if unknown."""

_PLAIN = re.compile(r"\w+")


@dataclass(slots=True)
class Findings:
    """The findings for one text."""

    columns: Columns = None
    """The columns that a query returns."""
    faults: list[str] = field(default_factory=list)
    unknown_tables: list[str] = field(default_factory=list)
    """Tables that the caller did not name."""


def check_query(text: str, tables: Mapping[str, Columns]) -> Findings:
    """Check a query over these tables. SqlError if it is invalid, Unsupported if only Spark can parse it."""
    query = QueryParser(text).whole()
    findings = Findings()
    findings.columns = _Checker(text, findings).query(
        query, {name.lower(): each for name, each in tables.items()}, None
    )
    return findings


def check_expression(text: str, columns: Columns) -> Findings:
    """Check an expression over these columns. SqlError and Unsupported as for a query."""
    expression = ExpressionParser(text).alone()
    findings = Findings()
    _Checker(text, findings).expression(expression, _Scope([_Rows("", columns)]), {})
    return findings


@dataclass(slots=True)
class _Rows:
    name: str
    columns: Columns

    def has(self, column: str) -> bool:
        if self.columns is None:
            return True
        # Spark names a column after its whole expression, such as `count(1)`, so the name may exist.
        return column.lower() in {each.lower() for each in self.columns} or not _PLAIN.fullmatch(column)


@dataclass(slots=True)
class _Scope:
    rows: list[_Rows]
    aliases: tuple[str, ...] = ()
    outer: _Scope | None = None

    def has(self, name: Name) -> bool:
        first = name.parts[0]
        if any(each.has(first) for each in self.rows):
            return True
        if first.lower() in {each.lower() for each in self.aliases}:
            return True
        if len(name.parts) > 1 and any(self._has_of(each, name) for each in self.rows):
            return True
        return self.outer is not None and self.outer.has(name)

    def _has_of(self, rows: _Rows, name: Name) -> bool:
        """Whether `rows` has the column of `table.column`, with or without qualifiers before the table's name."""
        lower = [part.lower() for part in name.parts]
        if rows.name.lower() not in lower[:-1]:
            return False
        return rows.has(name.parts[lower.index(rows.name.lower()) + 1])

    def column_names(self) -> list[str]:
        here = [column for each in self.rows for column in each.columns or ()]
        return [*here, *self.aliases, *(self.outer.column_names() if self.outer is not None else ())]


class _Checker:
    def __init__(self, text: str, findings: Findings) -> None:
        self._text = text
        self._findings = findings

    def query(self, query: Query, tables: Mapping[str, Columns], outer: _Scope | None) -> Columns:
        tables = dict(tables)
        for name, renamed, cte in query.ctes:
            columns = self.query(cte, tables, outer)
            tables[name.lower()] = renamed or columns
        results: list[Columns] = []
        scope = _Scope([], outer=outer)
        for term in query.selects:
            if isinstance(term, Query):
                results.append(self.query(term, tables, outer))
            else:
                columns, scope = self._select(term, tables, outer)
                results.append(columns)
        first = results[0]
        if len(query.selects) == 1 and isinstance(query.selects[0], Select):
            after = _Scope([*scope.rows, _Rows("", first)], scope.aliases, outer)
        else:
            after = _Scope([_Rows("", first)], (), outer)
        self._all(query.after, after, tables)
        return first

    def _select(self, select: Select, tables: Mapping[str, Columns], outer: _Scope | None) -> tuple[Columns, _Scope]:
        scope = _Scope([], outer=outer)
        for relation in select.relations:
            scope.rows.append(self._relation(relation, tables, scope))
        self._all(select.on, scope, tables)
        self._all(select.where, scope, tables)
        aliases = tuple(each.alias for each in select.items if each.alias)
        named = _Scope(scope.rows, aliases, outer)
        # An item can use the aliases of earlier items, but not its own.
        for at, item in enumerate(select.items):
            before = tuple(each.alias for each in select.items[:at] if each.alias)
            self.expression(item, _Scope(scope.rows, before, outer), tables)
        self._all(select.after, named, tables)
        return self._result_columns(select, scope), named

    def _relation(self, relation: Relation, tables: Mapping[str, Columns], scope: _Scope) -> _Rows:
        name = relation.alias or ""
        match relation.rows:
            case Table(parts=parts):
                name = name or parts[-1]
                columns = self._table(relation.rows, tables)
            case TableFunction(arguments=arguments):
                columns = None
                self.expression(arguments, _Scope(scope.rows, outer=scope.outer), tables)
            case query:
                columns = self.query(query, tables, scope)
        return _Rows(name, relation.columns or columns)

    def _table(self, table: Table, tables: Mapping[str, Columns]) -> Columns:
        name = table.parts[-1].lower()
        if len(table.parts) == 1 and name in tables:
            return tables[name]
        near = difflib.get_close_matches(name, list(tables), n=1)
        shown = ".".join(table.parts)
        if len(table.parts) == 1 and near:
            place = where(self._text, table.at)
            self._findings.faults.append(f"{place}: there is no table {shown!r}; did you mean {near[0]}?")
        else:
            self._findings.unknown_tables.append(shown)
        return None

    def _result_columns(self, select: Select, scope: _Scope) -> Columns:
        columns: list[str] = []
        for item in select.items:
            if item.star is not None:
                chosen = [each for each in scope.rows if not item.star or each.name.lower() == item.star[-1].lower()]
                if not chosen or any(each.columns is None for each in chosen):
                    return None
                left_out = {each.lower() for each in item.without}
                columns += [name for each in chosen for name in each.columns or () if name.lower() not in left_out]
            elif item.is_open and item.alias is None:
                return None
            elif item.alias is not None:
                columns.append(item.alias)
        return tuple(columns)

    def _all(self, expressions: Iterable[Expression], scope: _Scope, tables: Mapping[str, Columns]) -> None:
        for each in expressions:
            self.expression(each, scope, tables)

    def expression(self, expression: Expression, scope: _Scope, tables: Mapping[str, Columns]) -> None:
        for name in expression.names:
            if not scope.has(name):
                self._findings.faults.append(self._missing(name, scope.column_names()))
        for query in expression.queries:
            self.query(query, tables, scope)

    def _missing(self, name: Name, column_names: list[str]) -> str:
        shown = ".".join(name.parts)
        by_lower = {each.lower(): each for each in column_names}
        near = difflib.get_close_matches(name.parts[0].lower(), list(by_lower), n=1)
        there = [each for each in dict.fromkeys(column_names) if not each.startswith("_")]
        meant = f"; did you mean {by_lower[near[0]]}?" if near else f"; there are {', '.join(there)}" if there else ""
        return f"{where(self._text, name.at)}: there is no column {shown!r}{meant}"
