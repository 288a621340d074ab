"""Parses queries: WITH, SELECT, FROM with joins, and the clauses that follow."""

from __future__ import annotations

from typing import Final

from millpond.spark.sql.expressions import ExpressionParser
from millpond.spark.sql.tokens import Beyond
from millpond.spark.sql.tree import Expression, Made, Query, Relation, RowSource, Select, Table
from millpond.spark.sql.words import BEYOND, CLAUSES, INNER, JOINS, SETS

_BEGIN: Final = ("SELECT", "WITH")
_AFTER_SELECT: Final = "a comma, FROM or the end of the query"


class QueryParser(ExpressionParser):
    """Reads queries."""

    def whole(self) -> Query:
        """Parse the whole text as one query."""
        if not (self.is_word("SELECT", "WITH", "FROM", "VALUES", "TABLE") or self.is_sign("(")):
            raise self.unexpected("SELECT or WITH, since a step is a query,", _BEGIN)
        query = self.query()
        while self.took_sign(";"):
            pass
        if self.next.kind != "end":
            raise self.unexpected("the end of the query")
        return query

    def query(self) -> Query:
        self.deeper()
        query = Query([])
        if self.took_word("WITH"):
            if self.took_word("RECURSIVE"):
                raise Beyond("a recursive query")
            query.ctes.append(self._cte())
            while self.took_sign(","):
                query.ctes.append(self._cte())
        query.selects.append(self._term())
        while self.is_word(*SETS):
            self.take()
            self.took_word("ALL", "DISTINCT")
            if self.is_word("BY"):
                raise Beyond("a union by name")
            query.selects.append(self._term())
        self._tail(query)
        self.higher()
        return query

    def _cte(self) -> tuple[str, tuple[str, ...], Query]:
        name = self.name("the name of a query")
        has_columns = self.is_sign("(") and self.ahead(2).text in (",", ")")
        columns = tuple(self._name_list()) if has_columns and self.took_sign("(") else ()
        self.took_word("AS")
        self.need_sign("(")
        query = self.query()
        self.need_sign(")")
        return name, columns, query

    def _tail(self, query: Query) -> None:
        while True:
            if self.is_word("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"):
                self.take()
                self.need_word("BY")
                query.after += self._list()
            elif self.is_word("LIMIT", "OFFSET"):
                self.take()
                if not self.took_word("ALL"):
                    query.after.append(self.expression())
            elif self.is_word("WINDOW"):
                raise Beyond("a named window")
            elif self.is_sign("|>"):
                raise Beyond("a pipe")
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
        while self.took_sign(","):
            listed.append(self.expression())
            self.direction()
        return listed

    def _term(self) -> Select | Query:
        if self.took_sign("("):
            query = self.query()
            self.need_sign(")")
            return query
        if self.is_word("FROM", "VALUES", "TABLE", "MAP", "REDUCE"):
            raise Beyond(f"a query that begins with {self.next.upper}")
        self.need_word("SELECT")
        if self.is_word("DISTINCT", "ALL") and self.ahead(1).text not in (",", ".", ")"):
            self.take()
        select = Select([self.named_expression()], [], [], [], [])
        while self.took_sign(","):
            select.items.append(self.named_expression())
        if self.is_word("USING"):
            raise Beyond("a script")
        if self.took_word("FROM"):
            self._from(select)
        elif self.next.kind != "end" and not self.is_sign(")", ";", "|>") and self.next.upper not in CLAUSES:
            raise self.unexpected(_AFTER_SELECT)
        self._filters(select)
        return select

    def _filters(self, select: Select) -> None:
        if self.took_word("WHERE"):
            select.where.append(self.expression())
        if self.took_word("GROUP"):
            self.need_word("BY")
            if self.is_word("GROUPING", "ROLLUP", "CUBE") and self.ahead(1).text in ("(", "SETS", "sets"):
                raise Beyond("grouping sets")
            select.after += self._list()
            if self.took_word("WITH") and not self.took_word("ROLLUP", "CUBE"):
                raise self.unexpected("ROLLUP or CUBE", ["ROLLUP", "CUBE"])
            if self.is_word("GROUPING"):
                raise Beyond("grouping sets")
        if self.took_word("HAVING"):
            select.after.append(self.expression())
        if self.took_word("QUALIFY"):
            select.after.append(self.expression())

    # FROM

    def _from(self, select: Select) -> None:
        self._joined(select)
        while self.took_sign(","):
            self._joined(select)
        while self.is_word("LATERAL"):
            self._lateral_view(select)
        if self.next.upper in BEYOND:
            raise Beyond(self.next.upper)

    def _joined(self, select: Select) -> None:
        self.deeper()
        self._relation(select)
        while self.next.upper in JOINS:
            while self.next.upper in JOINS - {"JOIN"} or self.is_word("OUTER"):
                self.take()
            self.need_word("JOIN")
            self._relation(select)
            if self.took_word("ON"):
                select.on.append(self.expression())
            elif self.took_word("USING"):
                self.need_sign("(")
                self._name_list()
        self.higher()

    def _relation(self, select: Select) -> None:
        if self.took_word("LATERAL") and not self.is_sign("("):
            raise Beyond("a lateral function")
        if self.is_sign("("):
            self.take()
            if self.is_word("SELECT", "WITH") or self.is_sign("("):
                query = self.query()
                self.need_sign(")")
                select.relations.append(self._aliased(query))
            elif self.is_word("VALUES", "FROM", "TABLE"):
                raise Beyond(f"a query that begins with {self.next.upper}")
            else:
                self._joined(select)
                self.need_sign(")")
            return
        if self.is_word("VALUES") and self.ahead(1).text == "(":
            raise Beyond("VALUES")
        at = self.next.at
        parts = [self.name("the name of a table", CLAUSES | INNER)]
        while self.took_sign("."):
            parts.append(self.name("a name"))
        rows: RowSource
        if self.is_sign("("):
            with self._reading() as expression:
                self._call(parts[-1].upper())
            rows = Made(expression)
        else:
            rows = Table(tuple(parts), at)
        if self.next.upper in BEYOND or (self.is_word("VERSION", "TIMESTAMP", "FOR") and self.ahead(1).upper == "AS"):
            raise Beyond(self.next.upper)
        select.relations.append(self._aliased(rows))

    def _aliased(self, rows: RowSource) -> Relation:
        if self.next.upper in BEYOND:
            raise Beyond(self.next.upper)
        alias = self._alias()
        columns = tuple(self._name_list()) if alias and self.took_sign("(") else ()
        if self.next.upper in BEYOND:
            raise Beyond(self.next.upper)
        return Relation(rows, alias[0] if alias else None, columns)

    def _lateral_view(self, select: Select) -> None:
        self.take()
        self.need_word("VIEW")
        self.took_word("OUTER")
        with self._reading() as expression:
            self._name_or_call()
        alias = None
        if self.next.kind in ("word", "quoted") and self.next.upper not in CLAUSES | INNER:
            alias = self.take().text
        columns: list[str] = []
        if self.took_word("AS"):
            columns.append(self.name("a name"))
            while self.took_sign(","):
                columns.append(self.name("a name"))
        select.relations.append(Relation(Made(expression), alias, tuple(columns)))
