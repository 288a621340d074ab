"""Parses expressions, and collects the names and subqueries in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from millpond.columns.cursor import Cursor
from millpond.columns.tokens import SqlError, Unsupported, where
from millpond.columns.words import (
    CLAUSES,
    CONSTANTS,
    GENERATORS,
    INNER,
    LITERALS,
    QUERY,
    RESERVED,
    TYPES,
    UNIT_FIRST,
    UNITS,
)
from millpond.spark.sql.tree import Expression, Name

if TYPE_CHECKING:
    from millpond.spark.sql.tree import Query

_COMPARISONS: Final = ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=")
_MEMBERSHIPS: Final = ("BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP")
_BETWEEN_ARGUMENTS: Final = ("FROM", "FOR", "PLACING", "TO", "USING")
_FRAMES: Final = ("ROWS", "RANGE")
_OPERATORS: Final = ("+", "-", "*", "/", "%", "||", "&", "|", "^")
_NO_ALIAS: Final = CLAUSES | INNER


class ExpressionParser(Cursor):
    """Parses expressions; `queries.QueryParser` adds queries."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._into = Expression()
        """The expression being parsed, which collects names and subqueries."""

    def query(self) -> Query:
        raise Unsupported("a query within an expression")

    # Whole expressions

    def expression(self) -> Expression:
        with self._reading() as parsed:
            self._condition()
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
        self.enter()
        try:
            yield self._into
        finally:
            self._into = before
            self.leave()

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
        if self.accept_word("AS"):
            if self.accept_sign("("):
                return self._name_list()
            return [self.name("an alias")]
        if self.next.kind == "quoted" or (self.next.kind == "word" and self.next.upper not in _NO_ALIAS):
            return [self.take().text]
        return []

    def _name_list(self) -> list[str]:
        """Parse up to and including the closing parenthesis; the opening one has been read."""
        names = [self.name("a name")]
        while self.accept_sign(","):
            names.append(self.name("a name"))
        self.expect_sign(")")
        return names

    # Conditions and operators. Precedence does not matter: only the names are collected.

    def _condition(self) -> None:
        while True:
            while self.accept_word("NOT") or self.accept_sign("!"):
                pass
            self._sum()
            while self._comparison():
                pass
            if not self.accept_word("AND", "OR"):
                return

    def _comparison(self) -> bool:
        """Parse one comparison after a value, if there is one."""
        if self.is_sign(*_COMPARISONS) and not self._is_shift():
            self.take()
            self._sum()
        elif (self.ahead(1) if self.is_word("NOT") else self.next).upper in _MEMBERSHIPS:
            self.accept_word("NOT")
            self._membership()
        elif self.accept_word("IS"):
            self.accept_word("NOT")
            if self.accept_word("DISTINCT"):
                self.expect_word("FROM")
                self._sum()
            elif not self.accept_word("NULL", "TRUE", "FALSE", "UNKNOWN"):
                raise self.unexpected("NULL, TRUE, FALSE or DISTINCT FROM", ["NULL", "TRUE", "FALSE", "DISTINCT"])
        else:
            return False
        return True

    def _is_shift(self) -> bool:
        """`<<` and `>>` are two adjacent tokens, because a single `>` also closes the brackets of types."""
        one, other = self.next, self.ahead(1)
        return one.text in "<>" and other.kind == "sign" and other.text == one.text and other.at == one.at + 1

    def _membership(self) -> None:
        word = self.take().upper
        if word == "BETWEEN":
            self._sum()
            self.expect_word("AND")
            self._sum()
        elif word == "IN":
            self.expect_sign("(")
            self._inside()
        else:
            if self.is_word("ANY", "ALL", "SOME") and self.ahead(1).text == "(":
                self.take()
            self._sum()
            if self.accept_word("ESCAPE"):
                self._sum()

    def _sum(self) -> None:
        """Parse values with arithmetic or bit operators between them."""
        self._unary()
        while self._accept_operator():
            self._unary()

    def _accept_operator(self) -> bool:
        if self.is_sign("<", ">") and self._is_shift():
            sign = self.take()
            while self.is_sign(sign.text) and self.next.at < sign.at + len(">>>"):
                self.take()
            return True
        return self.accept_sign(*_OPERATORS) or self.accept_word("DIV")

    def _unary(self) -> None:
        while self.accept_sign("+", "-", "~"):
            pass
        self._primary()
        self._behind()

    def _behind(self) -> None:
        """Parse what may follow a value: a field, an element, a type or a path."""
        while True:
            if self.accept_sign("."):
                if self.accept_sign("*"):
                    self._into.is_open = True
                    return
                self.name("a field")
            elif self.accept_sign("["):
                self._part()
                self.expect_sign("]")
            elif self.accept_sign("::"):
                self.type()
            elif self.is_sign(":"):
                raise Unsupported("a path into a variant")
            elif self.accept_word("COLLATE"):
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
        if self.accept_sign("*"):
            self._into.star = ()
            self._except()
        elif self.is_sign("("):
            if self._is_lambda():
                self._lambda()
            else:
                self.take()
                self._inside()
        elif self.is_sign("?", ":", "{", "@"):
            raise Unsupported("a parameter")
        else:
            raise self.unexpected("a value")

    def _inside(self) -> None:
        """Parse a parenthesized query, expression or list, and the closing parenthesis."""
        if self.next.upper in QUERY and self.ahead(1).text not in (")", ",", ".", "="):
            self._query_inside()
            return
        self._part()
        self._alias_inside()
        while self.accept_sign(","):
            self._part()
            self._alias_inside()
        self.expect_sign(")")

    def _alias_inside(self) -> None:
        if self.accept_word("AS"):
            self.name("a name")

    def _query_inside(self) -> None:
        self.enter()
        self._into.queries.append(self.query())
        self.expect_sign(")")
        self.leave()

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
        elif word in RESERVED or (word in CLAUSES | INNER and not is_called and not self._is_name()):
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
            self.expect_sign("*")
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
        self.expect_sign("(")
        if function in GENERATORS:
            self._into.is_open = True
        self.accept_word("DISTINCT", "ALL")
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
            self.accept_word("FROM")
        if function == "POSITION":
            with self._reading() as parsed:
                self._sum()
            self._into.names += parsed.names
            self._into.queries += parsed.queries
            if self.accept_word("IN"):
                self._part()
        if not self.is_sign(")"):
            self._arguments()
        self.expect_sign(")")
        self._behind_call()

    def _arguments(self) -> None:
        self.accept_sign(",")
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
                raise Unsupported("an order within a call")
            if self.accept_word("IGNORE", "RESPECT"):
                self.expect_word("NULLS")
            if not self.accept_sign(",") and not self.accept_word(*_BETWEEN_ARGUMENTS):
                return

    def _argument(self) -> None:
        if self.is_sign("*") or (self.next.upper == "TABLE" and self.ahead(1).kind == "word"):
            if not self.accept_sign("*"):
                raise Unsupported("a table as an argument")
            self._except()
            return
        self._part()
        self._alias_inside()

    def _behind_call(self) -> None:
        if self.is_word("WITHIN") and self.ahead(1).upper == "GROUP":
            self.take()
            self.take()
            self.expect_sign("(")
            self._ordered()
            self.expect_sign(")")
        if self.is_word("FILTER") and self.ahead(1).text == "(":
            self.take()
            self.take()
            self.expect_word("WHERE")
            self._part()
            self.expect_sign(")")
        if self.is_word("IGNORE", "RESPECT") and self.ahead(1).upper == "NULLS":
            self.take()
            self.take()
        if self.accept_word("OVER"):
            self._window()

    def _window(self) -> None:
        if not self.accept_sign("("):
            self.name("the name of a window")
            return
        if self.next.kind == "word" and not self.is_word("PARTITION", "DISTRIBUTE", "ORDER", "SORT", *_FRAMES):
            self.take()
        if self.accept_word("PARTITION", "DISTRIBUTE"):
            self.expect_word("BY")
            self._part()
            while self.accept_sign(","):
                self._part()
        self._ordered()
        if self.accept_word(*_FRAMES):
            # Frame bounds are a few keywords and numbers; Spark checks their combination.
            while not self.is_sign(")") and self.next.kind != "end":
                if self.is_sign("("):
                    raise Unsupported("a computed frame")
                self.take()
        self.expect_sign(")")

    def _ordered(self) -> None:
        if not self.accept_word("ORDER", "SORT"):
            return
        self.expect_word("BY")
        while True:
            self._part()
            self.direction()
            if not self.accept_sign(","):
                return

    def direction(self) -> None:
        """Parse ASC, DESC, NULLS FIRST and NULLS LAST."""
        self.accept_word("ASC", "DESC")
        if self.accept_word("NULLS") and not self.accept_word("FIRST", "LAST"):
            raise self.unexpected("FIRST or LAST", ["FIRST", "LAST"])

    def _case(self) -> None:
        self.take()
        if not self.is_word("WHEN"):
            self._part()
        if not self.is_word("WHEN"):
            raise self.unexpected("WHEN", ["WHEN"])
        while self.accept_word("WHEN"):
            self._part()
            self.expect_word("THEN")
            self._part()
        if self.accept_word("ELSE"):
            self._part()
        self.expect_word("END")

    def _cast(self) -> None:
        self.take()
        self.take()
        self._part()
        self.expect_word("AS")
        self.type()
        self.expect_sign(")")

    def _interval(self) -> None:
        self.take()
        while self.next.kind in ("text", "number") or self.is_sign("+", "-"):
            self.accept_sign("+", "-")
            self.take()
            if self.next.upper.rstrip("S") in UNITS or self.next.upper.endswith("SECONDS"):
                self.take()
            else:
                break
        if self.accept_word("TO"):
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
        bound = self._name_list() if self.accept_sign("(") else [self.take().text]
        self.expect_sign("->")
        lower = {each.lower() for each in bound}
        body = self.expression()
        self._into.names += [each for each in body.names if each.parts[0].lower() not in lower]
        self._into.queries += body.queries

    # Types

    def type(self) -> None:
        self.enter()
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
            raise Unsupported("a type with a time zone")
        elif word == "STRING" and self.accept_word("COLLATE"):
            self.name("a collation")
        if self.accept_sign("("):
            while not self.accept_sign(")"):
                if self.next.kind not in ("number", "word"):
                    raise self.unexpected("a number")
                self.take()
                self.accept_sign(",")
        self.leave()

    def _inner_types(self, word: str) -> None:
        if self.accept_sign("<>"):
            return
        self.expect_sign("<")
        while True:
            if word == "STRUCT":
                self.name("the name of a field")
                self.accept_sign(":")
            self.type()
            if self.accept_word("NOT"):
                self.expect_word("NULL")
            if self.accept_word("COMMENT"):
                self.take()
            if not self.accept_sign(","):
                break
        self.expect_sign(">")


def _near_type(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, sorted(TYPES), n=1)
    return f"; did you mean {near[0].lower()}?" if near else ""
