"""Patterns mean what they mean to `re` where both have them, and none takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.coordinators.patterns import PATTERN_LENGTH_MAX, BadPattern, compiled

ATOMS = st.sampled_from(
    ["a", "b", "B", "-", r"\.", ".", "[ab]", "[^a]", "[a-c-]", r"\d", r"\W", "^", "$", r"[\w.]", "0"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda ways: f"({'|'.join(ways)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda each: f"(?i:{each})"),
    ),
    max_leaves=6,
)
NAMES = st.text("abB-._0", min_size=1, max_size=6)


@settings(max_examples=400)
@given(PATTERNS, st.lists(NAMES, min_size=1, max_size=8))
def test_whole_names_match_as_in_re(pattern: str, names: list[str]) -> None:
    for name in names:
        assert compiled(pattern).matches(name) == bool(re.fullmatch(pattern, name)), name


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("orders-.*", "orders-eu", True),
        ("orders-.*", "my-orders-eu", False),
        (r"\Qa.b\E+", "a.bb", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b", "a.b", True),
        ("[[:alpha:]_]+", "a_b", True),
        ("[[:^alpha:]]+", "1-2", True),
        ("[^[:digit:]]", "7", False),
        (r"\x61\x{62}", "ab", True),
        ("(?P<region>eu|us)-(?<kind>x)", "us-x", True),
        ("(?i)ABC", "abC", True),
        ("(?i)a(?-i)b", "AB", False),
        ("(?i)a(?-i)b", "Ab", True),
        ("(?si:A)b", "ab", True),
        ("[]a]+", "a", True),
        ("x{,2}", "x", False),
        ("ü|a", "a", True),
        ("", "a", False),
        (r"\Aa\z", "a", True),
    ],
)
def test_the_syntax_of_re2(pattern: str, name: str, expected: bool) -> None:
    assert compiled(pattern).matches(name) is expected


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a", r"unmatched \("),
        ("a)", r"unmatched \)"),
        ("[a", "ends in the middle"),
        ("a\\", "ends in the middle"),
        ("*", "nothing to repeat"),
        ("a**", "repeated"),
        ("a{2}{3}", "repeated"),
        ("a{3,2}", "repetitions"),
        ("a{1001}", "repetitions"),
        ("((a{50}){50}){50}", "too many repetitions"),
        ("[c-a]", "range"),
        (r"[a-\d]", "range"),
        (r"(a)\1", "not supported"),
        ("(?=a)", "not supported"),
        ("(?!a)", "not supported"),
        ("(?<=a)b", "not supported"),
        ("(?<!a)b", "not supported"),
        (r"\bword\b", "not supported"),
        (r"\pL", "not supported"),
        ("(?P<a-b>x)", "name"),
        ("[[:letters:]]", "class"),
        (r"\x4", "ends in the middle"),
        (r"\xzz", "not a character"),
        ("(" * 51 + ")" * 51, "nested"),
        ("a" * (PATTERN_LENGTH_MAX + 1), "at most"),
    ],
)
def test_what_is_refused_and_why(pattern: str, fault: str) -> None:
    with pytest.raises(BadPattern, match=fault):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern", ["((a*)*)*b", "(a|a)*b", "(a?){200}a{200}b", ".*.*.*.*.*.*.*.*b", "((((){1000}){1000}){1000}){1000}b"]
)
def test_hostile_patterns_take_no_longer_than_others(pattern: str) -> None:
    began = time.process_time()
    machine = compiled(pattern)
    for length in range(240, 249):
        assert not machine.matches("a" * length)
    assert time.process_time() - began < 5


def test_states_that_are_kept_are_bounded() -> None:
    machine = compiled("(.|..)*a.{9}")
    for number in range(3000):
        machine.matches(f"{number:012b}".replace("1", "a") * 3)
    assert len(machine._next) <= 1000
