"""The SQL parser: valid and invalid texts, error messages, and agreement with Spark."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.columns.tokens import SqlError, Unsupported
from millpond.spark.sql.columns import check_expression, check_query
from support.spark_parser import spark_parser
from support.sql_texts import EXPRESSIONS, QUERIES, WRONG_EXPRESSIONS, WRONG_QUERIES, lines

READ_AS_NAMES = {
    "select * from", "select from where", "select *, from input", "select id from input limit",
    "with a (select id from input) select * from", "total > 0 and",
}  # fmt: skip
"""Spark's grammar allows nearly every keyword as a name, so that these are valid. They are surely mistakes."""

NO_QUERIES = re.compile("insert|drop|create")
"""Statements that Spark would execute; a step must be a query."""


def fault_of(text: str, *, is_query: bool) -> str | None:
    try:
        findings = check_query(text, {"input": None}) if is_query else check_expression(text, None)
    except SqlError as fault:
        return str(fault)
    except Unsupported:
        return None
    assert not findings.faults
    return None


@pytest.mark.parametrize("text", lines(QUERIES))
def test_a_query_parses(text: str) -> None:
    assert fault_of(text, is_query=True) is None


@pytest.mark.parametrize("text", lines(EXPRESSIONS))
def test_an_expression_parses(text: str) -> None:
    assert fault_of(text, is_query=False) is None


@pytest.mark.parametrize("text", lines(WRONG_QUERIES))
def test_an_invalid_query_does_not_parse(text: str) -> None:
    assert fault_of(text, is_query=True) is not None


@pytest.mark.parametrize("text", lines(WRONG_EXPRESSIONS))
def test_an_invalid_expression_does_not_parse(text: str) -> None:
    assert fault_of(text, is_query=False) is not None


def test_few_queries_are_left_to_spark() -> None:
    left = []
    for text in lines(QUERIES):
        try:
            check_query(text, {"input": None})
        except Unsupported:
            left.append(text)
    assert len(left) <= 16, left


@pytest.mark.slow
def test_spark_agrees() -> None:
    differ = []
    with spark_parser() as spark:
        for text in lines(QUERIES + WRONG_QUERIES):
            theirs = spark.fault_of_query(text)
            if (theirs is None) != (fault_of(text, is_query=True) is None):
                differ.append(text)
        for text in lines(EXPRESSIONS + WRONG_EXPRESSIONS):
            theirs = spark.fault_of_expression(text)
            if (theirs is None) != (fault_of(text, is_query=False) is None):
                differ.append(text)
    assert {text for text in differ if not NO_QUERIES.match(text)} == READ_AS_NAMES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select * form input", "character 10: expected a comma, FROM or the end of the query, not 'form'; did you "
         "mean FROM for 'form'?"),
        ("selct * from input", "did you mean SELECT for 'selct'?"),
        ("select id\nfrom input\nwehre id > 1", "line 3, character 7: expected the end of the query, not 'id'; "
         "did you mean WHERE for 'wehre'?"),
        ("select cast(id as strng) from input", "character 19: there is no type 'strng'; did you mean string?"),
        ("select 'abc from input", "character 8: a text in '…' has no end"),
        ("select sum(total from input", "expected ')', but the text ends"),
        ("drop table input", "expected a query (SELECT or WITH), not 'drop'"),
        ("select " + "(" * 200 + "1" + ")" * 200, "it is nested more than 40 deep"),
    ],
)  # fmt: skip
def test_an_error_says_what_was_expected(text: str, message: str) -> None:
    assert message in (fault_of(text, is_query=True) or "")


PIECES = [re.findall(r"\w+|[^\w\s]+|\s+", text) for text in lines(QUERIES)]
WORDS = sorted({piece for pieces in PIECES for piece in pieces if piece.strip()})


@given(st.sampled_from(PIECES), st.lists(st.tuples(st.integers(0, 60), st.sampled_from(WORDS)), max_size=4))
def test_any_text_parses_or_is_an_sql_error(pieces: list[str], changes: list[tuple[int, str]]) -> None:
    changed = list(pieces)
    for at, word in changes:
        changed[at : at + 1] = [f" {word} "]
    text = "".join(changed)
    for look in (lambda: check_query(text, {"input": ("id",)}), lambda: check_expression(text, ("id",))):
        with contextlib.suppress(SqlError, Unsupported):
            look()
