"""Parses queries: WITH, SELECT, FROM with joins, and the clauses that follow."""

from __future__ import annotations

from typing import Final

from millpond.columns.tokens import Unsupported
from millpond.columns.words import CLAUSES, INNER, JOINS, SETS, UNSUPPORTED
from millpond.spark.sql.expressions import ExpressionParser
from millpond.spark.sql.tree import Expression, Query, Relation, RowSource, Select, Table, TableFunction

_BEGIN: Final = ("SELECT", "WITH")
_AFTER_SELECT: Final = "a comma, FROM or the end of the query"


class QueryParser(ExpressionParser):
    """Reads queries."""

    def whole(self) -> Query:
        """Parse the whole text as one query."""
        if not (self.is_word("SELECT", "WITH", "FROM", "VALUES", "TABLE") or self.is_sign("(")):
            raise self.unexpected("a query (SELECT or WITH)", _BEGIN)
        query = self.query()
        while self.accept_sign(";"):
            pass
        if self.next.kind != "end":
            raise self.unexpected("the end of the query")
        return query

    def query(self) -> Query:
        self.enter()
        query = Query([])
        if self.accept_word("WITH"):
            if self.accept_word("RECURSIVE"):
                raise Unsupported("a recursive query")
            query.ctes.append(self._cte())
            while self.accept_sign(","):
                query.ctes.append(self._cte())
        query.selects.append(self._term())
        while self.is_word(*SETS):
            self.take()
            self.accept_word("ALL", "DISTINCT")
            if self.is_word("BY"):
                raise Unsupported("a union by name")
            query.selects.append(self._term())
        self._tail(query)
        self.leave()
        return query

    def _cte(self) -> tuple[str, tuple[str, ...], Query]:
        name = self.name("the name of a query")
        has_columns = self.is_sign("(") and self.ahead(2).text in (",", ")")
        columns = tuple(self._name_list()) if has_columns and self.accept_sign("(") else ()
        self.accept_word("AS")
        self.expect_sign("(")
        query = self.query()
        self.expect_sign(")")
        return name, columns, query

    def _tail(self, query: Query) -> None:
        while True:
            if self.is_word("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"):
                self.take()
                self.expect_word("BY")
                query.after += self._list()
            elif self.is_word("LIMIT", "OFFSET"):
                self.take()
                if not self.accept_word("ALL"):
                    query.after.append(self.expression())
            elif self.is_word("WINDOW"):
                raise Unsupported("a named window")
            elif self.is_sign("|>"):
                raise Unsupported("a pipe")
            else:
                return

    def _list(self) -> list[Expression]:
        """The expressions of ORDER BY, GROUP BY and similar clauses."""
        if self.is_word("ALL") and self.ahead(1).text not in ("(", ".", ","):
            self.take()
            self.direction()
            return []
        listed = [self.expression()]
        self.direction()
        while self.accept_sign(","):
            listed.append(self.expression())
            self.direction()
        return listed

    def _term(self) -> Select | Query:
        if self.accept_sign("("):
            query = self.query()
            self.expect_sign(")")
            return query
        if self.is_word("FROM", "VALUES", "TABLE", "MAP", "REDUCE"):
            raise Unsupported(f"a query that begins with {self.next.upper}")
        self.expect_word("SELECT")
        if self.is_word("DISTINCT", "ALL") and self.ahead(1).text not in (",", ".", ")"):
            self.take()
        select = Select([self.named_expression()], [], [], [], [])
        while self.accept_sign(","):
            select.items.append(self.named_expression())
        if self.is_word("USING"):
            raise Unsupported("a script")
        if self.accept_word("FROM"):
            self._from(select)
        elif self.next.kind != "end" and not self.is_sign(")", ";", "|>") and self.next.upper not in CLAUSES:
            raise self.unexpected(_AFTER_SELECT)
        self._filters(select)
        return select

    def _filters(self, select: Select) -> None:
        if self.accept_word("WHERE"):
            select.where.append(self.expression())
        if self.accept_word("GROUP"):
            self.expect_word("BY")
            if self.is_word("GROUPING", "ROLLUP", "CUBE") and self.ahead(1).text in ("(", "SETS", "sets"):
                raise Unsupported("grouping sets")
            select.after += self._list()
            if self.accept_word("WITH") and not self.accept_word("ROLLUP", "CUBE"):
                raise self.unexpected("ROLLUP or CUBE", ["ROLLUP", "CUBE"])
            if self.is_word("GROUPING"):
                raise Unsupported("grouping sets")
        if self.accept_word("HAVING"):
            select.after.append(self.expression())
        if self.accept_word("QUALIFY"):
            select.after.append(self.expression())

    # FROM

    def _from(self, select: Select) -> None:
        self._joined(select)
        while self.accept_sign(","):
            self._joined(select)
        while self.is_word("LATERAL"):
            self._lateral_view(select)
        if self.next.upper in UNSUPPORTED:
            raise Unsupported(self.next.upper)

    def _joined(self, select: Select) -> None:
        self.enter()
        self._relation(select)
        while self.next.upper in JOINS:
            while self.next.upper in JOINS - {"JOIN"} or self.is_word("OUTER"):
                self.take()
            self.expect_word("JOIN")
            self._relation(select)
            if self.accept_word("ON"):
                select.on.append(self.expression())
            elif self.accept_word("USING"):
                self.expect_sign("(")
                self._name_list()
        self.leave()

    def _relation(self, select: Select) -> None:
        if self.accept_word("LATERAL") and not self.is_sign("("):
            raise Unsupported("a lateral function")
        if self.is_sign("("):
            self.take()
            if self.is_word("SELECT", "WITH") or self.is_sign("("):
                query = self.query()
                self.expect_sign(")")
                select.relations.append(self._aliased(query))
            elif self.is_word("VALUES", "FROM", "TABLE"):
                raise Unsupported(f"a query that begins with {self.next.upper}")
            else:
                self._joined(select)
                self.expect_sign(")")
            return
        if self.is_word("VALUES") and self.ahead(1).text == "(":
            raise Unsupported("VALUES")
        at = self.next.at
        parts = [self.name("the name of a table", CLAUSES | INNER)]
        while self.accept_sign("."):
            parts.append(self.name("a name"))
        rows: RowSource
        if self.is_sign("("):
            with self._reading() as expression:
                self._call(parts[-1].upper())
            rows = TableFunction(expression)
        else:
            rows = Table(tuple(parts), at)
        if self.next.upper in UNSUPPORTED or (
            self.is_word("VERSION", "TIMESTAMP", "FOR") and self.ahead(1).upper == "AS"
        ):
            raise Unsupported(self.next.upper)
        select.relations.append(self._aliased(rows))

    def _aliased(self, rows: RowSource) -> Relation:
        if self.next.upper in UNSUPPORTED:
            raise Unsupported(self.next.upper)
        alias = self._alias()
        columns = tuple(self._name_list()) if alias and self.accept_sign("(") else ()
        if self.next.upper in UNSUPPORTED:
            raise Unsupported(self.next.upper)
        return Relation(rows, alias[0] if alias else None, columns)

    def _lateral_view(self, select: Select) -> None:
        self.take()
        self.expect_word("VIEW")
        self.accept_word("OUTER")
        with self._reading() as expression:
            self._name_or_call()
        alias = None
        if self.next.kind in ("word", "quoted") and self.next.upper not in CLAUSES | INNER:
            alias = self.take().text
        columns: list[str] = []
        if self.accept_word("AS"):
            columns.append(self.name("a name"))
            while self.accept_sign(","):
                columns.append(self.name("a name"))
        select.relations.append(Relation(TableFunction(expression), alias, tuple(columns)))
