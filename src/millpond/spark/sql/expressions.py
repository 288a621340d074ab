"""Parses expressions by precedence, and collects the names and subqueries in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millpond.spark.sql.cursor import Cursor
from millpond.spark.sql.tokens import Beyond, SqlError, where
from millpond.spark.sql.tree import Expression, Name
from millpond.spark.sql.words import (
    CLAUSES,
    CONSTANTS,
    GENERATORS,
    HARD,
    INNER,
    LITERALS,
    QUERY,
    TYPES,
    UNIT_FIRST,
    UNITS,
)

if TYPE_CHECKING:
    from millpond.spark.sql.tree import Query

_COMPARISONS: Final = ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=")
_MEMBERSHIPS: Final = ("BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP")
_BETWEEN_ARGUMENTS: Final = ("FROM", "FOR", "PLACING", "TO", "USING")
_FRAMES: Final = ("ROWS", "RANGE")
_NO_ALIAS: Final = CLAUSES | INNER


class ExpressionParser(Cursor):
    """Parses expressions; `queries.QueryParser` adds queries."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._into = Expression()
        """The expression being parsed, which collects names and subqueries."""

    def query(self) -> Query:
        raise Beyond("a query within an expression")

    # Whole expressions

    def expression(self) -> Expression:
        with self._reading() as parsed:
            self._or()
        return parsed

    def named_expression(self) -> Expression:
        """Parse an expression with its alias, as in a SELECT list."""
        first = self.next
        parsed = self.expression()
        if parsed.star is not None and not self.is_word("AS"):
            return parsed
        alias = self._alias()
        if alias:
            parsed.alias, parsed.is_open = (alias[0], False) if len(alias) == 1 else (None, True)
        elif len(parsed.names) == 1 and not parsed.queries and self._was_name(parsed.names[0], first.at):
            parsed.alias = parsed.names[0].parts[-1]
        return parsed

    def alone(self) -> Expression:
        """Parse the whole text as one expression, with or without an alias."""
        parsed = self.named_expression()
        if self.next.kind != "end":
            raise self.unexpected("an operator or the end of the expression")
        return parsed

    @contextmanager
    def _reading(self) -> Iterator[Expression]:
        before, self._into = self._into, Expression()
        self.deeper()
        try:
            yield self._into
        finally:
            self._into = before
            self.higher()

    def _part(self) -> Expression:
        """Parse a nested expression; the names that it needs also count for the outer one."""
        parsed = self.expression()
        self._into.names += parsed.names
        self._into.queries += parsed.queries
        self._into.is_open |= parsed.is_open
        return parsed

    def _was_name(self, name: Name, at: int) -> bool:
        """Whether the expression consists of this name only."""
        last = self._tokens[self._at - 1]
        return name.at == at and last.text == name.parts[-1] and self._length_since(at) == 2 * len(name.parts) - 1

    def _length_since(self, at: int) -> int:
        start = next(index for index, token in enumerate(self._tokens) if token.at == at)
        return self._at - start

    def _alias(self) -> list[str]:
        if self.took_word("AS"):
            if self.took_sign("("):
                return self._name_list()
            return [self.name("an alias")]
        if self.next.kind == "quoted" or (self.next.kind == "word" and self.next.upper not in _NO_ALIAS):
            return [self.take().text]
        return []

    def _name_list(self) -> list[str]:
        """Parse up to and including the closing parenthesis; the opening one has been read."""
        names = [self.name("a name")]
        while self.took_sign(","):
            names.append(self.name("a name"))
        self.need_sign(")")
        return names

    # By precedence, the weakest first

    def _or(self) -> None:
        self._and()
        while self.took_word("OR"):
            self._and()

    def _and(self) -> None:
        self._not()
        while self.took_word("AND"):
            self._not()

    def _not(self) -> None:
        while self.is_word("NOT") or self.is_sign("!"):
            self.take()
        self._predicate()

    def _predicate(self) -> None:
        self._bits()
        while True:
            if self._is_comparison():
                self.take()
                self._bits()
            elif (self.ahead(1) if self.is_word("NOT") else self.next).upper in _MEMBERSHIPS:
                self.took_word("NOT")
                self._membership()
            elif self.is_word("IS"):
                self.take()
                self.took_word("NOT")
                if self.took_word("DISTINCT"):
                    self.need_word("FROM")
                    self._bits()
                elif not self.took_word("NULL", "TRUE", "FALSE", "UNKNOWN"):
                    raise self.unexpected("NULL, TRUE, FALSE or DISTINCT FROM", ["NULL", "TRUE", "FALSE", "DISTINCT"])
            else:
                return

    def _is_comparison(self) -> bool:
        if not self.is_sign(*_COMPARISONS):
            return False
        return not self._is_shift()

    def _is_shift(self) -> bool:
        """`<<` and `>>` are two adjacent tokens, because a single `>` also closes the brackets of types."""
        one, other = self.next, self.ahead(1)
        return one.text in "<>" and other.kind == "sign" and other.text == one.text and other.at == one.at + 1

    def _membership(self) -> None:
        word = self.take().upper
        if word == "BETWEEN":
            self._bits()
            self.need_word("AND")
            self._bits()
        elif word == "IN":
            self.need_sign("(")
            self._inside()
        else:
            if self.is_word("ANY", "ALL", "SOME") and self.ahead(1).text == "(":
                self.take()
            self._bits()
            if self.took_word("ESCAPE"):
                self._bits()

    def _bits(self) -> None:
        self._shifts()
        while self.is_sign("&", "|", "^"):
            self.take()
            self._shifts()

    def _shifts(self) -> None:
        self._sums()
        while self.is_sign("<", ">") and self._is_shift():
            sign = self.take()
            while self.is_sign(sign.text) and self.next.at < sign.at + len(">>>"):
                self.take()
            self._sums()

    def _sums(self) -> None:
        self._products()
        while self.is_sign("+", "-", "||"):
            self.take()
            self._products()

    def _products(self) -> None:
        self._unary()
        while self.is_sign("*", "/", "%") or self.is_word("DIV"):
            self.take()
            self._unary()

    def _unary(self) -> None:
        while self.took_sign("+", "-", "~"):
            pass
        self._primary()
        self._behind()

    def _behind(self) -> None:
        """Parse what may follow a value: a field, an element, a type or a path."""
        while True:
            if self.took_sign("."):
                if self.took_sign("*"):
                    self._into.is_open = True
                    return
                self.name("a field")
            elif self.took_sign("["):
                self._part()
                self.need_sign("]")
            elif self.took_sign("::"):
                self.type()
            elif self.is_sign(":"):
                raise Beyond("a path into a variant")
            elif self.took_word("COLLATE"):
                self.name("a collation")
            else:
                return

    # Primary expressions

    def _primary(self) -> None:
        token = self.next
        match token.kind:
            case "number":
                self.take()
            case "text":
                while self.next.kind == "text":
                    self.take()
            case "quoted":
                self._name_or_call()
            case "word":
                self._word()
            case "sign":
                self._sign()
            case _:
                raise self.unexpected("a value")

    def _sign(self) -> None:
        if self.took_sign("*"):
            self._into.star = ()
            self._except()
        elif self.is_sign("("):
            if self._is_lambda():
                self._lambda()
            else:
                self.take()
                self._inside()
        elif self.is_sign("?", ":", "{", "@"):
            raise Beyond("a parameter")
        else:
            raise self.unexpected("a value")

    def _inside(self) -> None:
        """Parse a parenthesized query, expression or list, and the closing parenthesis."""
        if self.next.upper in QUERY and self.ahead(1).text not in (")", ",", ".", "="):
            self._query_inside()
            return
        self._part()
        self._alias_inside()
        while self.took_sign(","):
            self._part()
            self._alias_inside()
        self.need_sign(")")

    def _alias_inside(self) -> None:
        if self.took_word("AS"):
            self.name("a name")

    def _query_inside(self) -> None:
        self.deeper()
        self._into.queries.append(self.query())
        self.need_sign(")")
        self.higher()

    def _word(self) -> None:
        token, behind = self.next, self.ahead(1)
        word = token.upper
        is_called = behind.kind == "sign" and behind.text == "("
        if word in LITERALS and behind.kind == "text" and word != "INTERVAL":
            self.take()
            self._primary()
        elif word == "INTERVAL" and (behind.kind in ("text", "number") or behind.text in ("+", "-")):
            self._interval()
        elif word == "CASE" and (not is_called or self.ahead(2).upper == "WHEN"):
            self._case()
        elif word in ("CAST", "TRY_CAST") and is_called:
            self._cast()
        elif word == "EXISTS" and is_called and self.ahead(2).upper in QUERY:
            self.take()
            self.take()
            self._query_inside()
        elif word in CONSTANTS and not is_called and behind.text != ".":
            self.take()
        elif word in HARD or (word in CLAUSES | INNER and not is_called and not self._is_name()):
            raise self.unexpected("a value")
        elif behind.text == "->":
            self._lambda()
        else:
            self._name_or_call()

    def _is_name(self) -> bool:
        """Whether a keyword is a column name here, judging by the next token."""
        behind = self.ahead(1)
        return behind.kind in ("sign", "end") or behind.upper in ("FROM", "AS")

    def _name_or_call(self) -> None:
        at = self.next.at
        parts = [self.take().text]
        while self.is_sign(".") and self.ahead(1).kind in ("word", "quoted"):
            self.take()
            parts.append(self.take().text)
        if self.is_sign("."):
            self.take()
            self.need_sign("*")
            self._into.star = tuple(parts)
            self._except()
        elif self.is_sign("("):
            self._call(parts[-1].upper())
        else:
            self._into.names.append(Name(tuple(parts), at))

    def _except(self) -> None:
        if self.is_word("EXCEPT") and self.ahead(1).text == "(":
            self.take()
            self.take()
            names = self._name_list()
            self._into.without = tuple(names)

    def _call(self, function: str) -> None:
        self.need_sign("(")
        if function in GENERATORS:
            self._into.is_open = True
        self.took_word("DISTINCT", "ALL")
        if function in UNIT_FIRST and self.next.upper in UNITS and self.ahead(1).text == ",":
            self.take()
            self.take()
        if function == "EXTRACT" and self.next.kind == "word" and self.ahead(1).upper == "FROM":
            self.take()
            self.take()
        if (
            function == "TRIM"
            and self.is_word("BOTH", "LEADING", "TRAILING")
            and self.ahead(1).text not in (",", ")")
        ):
            self.take()
            self.took_word("FROM")
        if function == "POSITION":
            with self._reading() as parsed:
                self._bits()
            self._into.names += parsed.names
            self._into.queries += parsed.queries
            if self.took_word("IN"):
                self._part()
        if not self.is_sign(")"):
            self._arguments()
        self.need_sign(")")
        self._behind_call()

    def _arguments(self) -> None:
        self.took_sign(",")
        while True:
            if self.next.upper in QUERY and self.ahead(1).text not in (")", ",", ".", "("):
                self._into.queries.append(self.query())
            elif self.ahead(1).text == "=>":
                self.name("the name of an argument")
                self.take()
                self._argument()
            else:
                self._argument()
            if self.is_word("ORDER"):
                raise Beyond("an order within a call")
            if self.took_word("IGNORE", "RESPECT"):
                self.need_word("NULLS")
            if not self.took_sign(",") and not self.took_word(*_BETWEEN_ARGUMENTS):
                return

    def _argument(self) -> None:
        if self.is_sign("*") or (self.next.upper == "TABLE" and self.ahead(1).kind == "word"):
            if not self.took_sign("*"):
                raise Beyond("a table as an argument")
            self._except()
            return
        self._part()
        self._alias_inside()

    def _behind_call(self) -> None:
        if self.is_word("WITHIN") and self.ahead(1).upper == "GROUP":
            self.take()
            self.take()
            self.need_sign("(")
            self._ordered()
            self.need_sign(")")
        if self.is_word("FILTER") and self.ahead(1).text == "(":
            self.take()
            self.take()
            self.need_word("WHERE")
            self._part()
            self.need_sign(")")
        if self.is_word("IGNORE", "RESPECT") and self.ahead(1).upper == "NULLS":
            self.take()
            self.take()
        if self.took_word("OVER"):
            self._window()

    def _window(self) -> None:
        if not self.took_sign("("):
            self.name("the name of a window")
            return
        if self.next.kind == "word" and not self.is_word("PARTITION", "DISTRIBUTE", "ORDER", "SORT", *_FRAMES):
            self.take()
        if self.took_word("PARTITION", "DISTRIBUTE"):
            self.need_word("BY")
            self._part()
            while self.took_sign(","):
                self._part()
        self._ordered()
        if self.took_word(*_FRAMES):
            # Frame bounds are a few keywords and numbers; Spark checks their combination.
            while not self.is_sign(")") and self.next.kind != "end":
                if self.is_sign("("):
                    raise Beyond("a computed frame")
                self.take()
        self.need_sign(")")

    def _ordered(self) -> None:
        if not self.took_word("ORDER", "SORT"):
            return
        self.need_word("BY")
        while True:
            self._part()
            self.direction()
            if not self.took_sign(","):
                return

    def direction(self) -> None:
        """Parse ASC, DESC, NULLS FIRST and NULLS LAST."""
        self.took_word("ASC", "DESC")
        if self.took_word("NULLS") and not self.took_word("FIRST", "LAST"):
            raise self.unexpected("FIRST or LAST", ["FIRST", "LAST"])

    def _case(self) -> None:
        self.take()
        if not self.is_word("WHEN"):
            self._part()
        if not self.is_word("WHEN"):
            raise self.unexpected("WHEN", ["WHEN"])
        while self.took_word("WHEN"):
            self._part()
            self.need_word("THEN")
            self._part()
        if self.took_word("ELSE"):
            self._part()
        self.need_word("END")

    def _cast(self) -> None:
        self.take()
        self.take()
        self._part()
        self.need_word("AS")
        self.type()
        self.need_sign(")")

    def _interval(self) -> None:
        self.take()
        while self.next.kind in ("text", "number") or self.is_sign("+", "-"):
            self.took_sign("+", "-")
            self.take()
            if self.next.upper.rstrip("S") in UNITS or self.next.upper.endswith("SECONDS"):
                self.take()
            else:
                break
        if self.took_word("TO"):
            self.name("a unit of time")

    # Lambda functions: x -> x + 1

    def _is_lambda(self) -> bool:
        """Whether the parenthesis starts a lambda, `(x, y) -> …`."""
        ahead = 1
        while self.ahead(ahead).kind in ("word", "quoted") and self.ahead(ahead + 1).text == ",":
            ahead += 2
        closes = self.ahead(ahead).kind in ("word", "quoted") and self.ahead(ahead + 1).text == ")"
        return closes and self.ahead(ahead + 2).text == "->"

    def _lambda(self) -> None:
        bound = self._name_list() if self.took_sign("(") else [self.take().text]
        self.need_sign("->")
        lower = {each.lower() for each in bound}
        body = self.expression()
        self._into.names += [each for each in body.names if each.parts[0].lower() not in lower]
        self._into.queries += body.queries

    # Types

    def type(self) -> None:
        self.deeper()
        token = self.next
        word = self.name("a type").upper()
        if token.kind == "word" and word not in TYPES:
            raise SqlError(f"{where(self.text, token.at)}: there is no type {token.text!r}{_near_type(word)}")
        if word == "INTERVAL":
            while self.next.upper in UNITS or self.is_word("TO"):
                self.take()
        elif word in ("ARRAY", "MAP", "STRUCT"):
            self._inner_types(word)
        elif word in ("TIMESTAMP", "TIME") and self.is_word("WITH", "WITHOUT"):
            raise Beyond("a type with a time zone")
        elif word == "STRING" and self.took_word("COLLATE"):
            self.name("a collation")
        if self.took_sign("("):
            while not self.took_sign(")"):
                if self.next.kind not in ("number", "word"):
                    raise self.unexpected("a number")
                self.take()
                self.took_sign(",")
        self.higher()

    def _inner_types(self, word: str) -> None:
        if self.took_sign("<>"):
            return
        self.need_sign("<")
        while True:
            if word == "STRUCT":
                self.name("the name of a field")
                self.took_sign(":")
            self.type()
            if self.took_word("NOT"):
                self.need_word("NULL")
            if self.took_word("COMMENT"):
                self.take()
            if not self.took_sign(","):
                break
        self.need_sign(">")


def _near_type(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, sorted(TYPES), n=1)
    return f"; did you mean {near[0].lower()}?" if near else ""
