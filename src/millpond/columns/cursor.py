"""The parser's position in the tokens, and its error messages for an unexpected one."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from millpond.columns.tokens import SqlError, Token, tokens, where
from millpond.columns.words import CLAUSES, INNER

DEPTH_MAX: Final = 40
"""The nesting limit: more than people write, and less than overflows Python's stack."""


class Cursor:
    """Steps through the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def ahead(self, count: int) -> Token:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def is_word(self, *words: str) -> bool:
        return self.next.upper in words

    def is_sign(self, *signs: str) -> bool:
        return self.next.kind == "sign" and self.next.text in signs

    def accept_word(self, *words: str) -> bool:
        is_next = self.is_word(*words)
        if is_next:
            self.take()
        return is_next

    def accept_sign(self, *signs: str) -> bool:
        is_next = self.is_sign(*signs)
        if is_next:
            self.take()
        return is_next

    def expect_word(self, word: str) -> None:
        if not self.accept_word(word):
            raise self.unexpected(word, [word])

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            raise self.unexpected(repr(sign))

    def name(self, what: str, but: Collection[str] = ()) -> str:
        """An identifier; nearly every keyword may be one."""
        if self.next.kind == "quoted" or (self.next.kind == "word" and self.next.upper not in but):
            return self.take().text
        raise self.unexpected(what)

    def enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(f"it is nested more than {DEPTH_MAX} deep")

    def leave(self) -> None:
        self._depth -= 1

    def unexpected(self, expected: str, words: Collection[str] = CLAUSES) -> SqlError:
        token = self.next
        if token.kind == "end":
            return SqlError(f"expected {expected}, but the text ends")
        place = where(self.text, token.at)
        before = self._tokens[self._at - 1] if self._at else None
        meant = _meant(token, words) or (_meant(before, words) if before is not None else "")
        return SqlError(f"{place}: expected {expected}, not {_shown(token)}{meant}")


def _meant(token: Token, words: Collection[str]) -> str:
    """The keyword that this is probably a typo of."""
    if token.kind != "word" or token.upper in CLAUSES | INNER:
        return ""
    near = difflib.get_close_matches(token.upper, words, n=1, cutoff=0.75)
    return f"; did you mean {near[0]} for {token.text!r}?" if near else ""


def _shown(token: Token) -> str:
    text = token.text if len(token.text) <= 40 else token.text[:39] + "…"
    return {"text": "the text ", "quoted": "the name "}.get(token.kind, "") + repr(text)
