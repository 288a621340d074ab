"""The SQL tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

CHARACTERS_MAX: Final = 1_000_000

Kind = Literal["word", "quoted", "text", "number", "sign", "end"]


class SqlError(ValueError):
    """Invalid SQL. The message says where, and what was expected."""


class Unsupported(Exception):
    """Valid SQL, perhaps, that only Spark can check."""


class Token(NamedTuple):
    kind: Kind
    text: str
    at: int
    """Its first character in the text, from 0 on."""

    @property
    def upper(self) -> str:
        """The keyword, in upper case."""
        return self.text.upper() if self.kind == "word" else ""


_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ | --[^\n]* | /\*.*?\*/ )
  | (?P<number> (?: \d+\.\d* | \.\d+ | \d+ ) (?: [eE][+-]?\d+ )? (?: BD | bd | [LSYDFlsydf] )? (?! \w ) )
  | (?P<word> \w+ )
  | `(?P<quoted> (?: [^`] | `` )* )`
  | '(?P<text> (?: [^'\\] | \\. | '' )* )'
  | "(?P<text2> (?: [^"\\] | \\. | "" )* )"
  | (?P<sign> <=> | <= | >= | <> | != | == | \|\| | -> | => | :: | \|> | [-+*/%=<>!~^&|.,:;?()\[\]{}@] )
    """,
    re.VERBOSE | re.DOTALL,
)

_OPEN: Final = {"'": "a text in '…'", '"': 'a text in "…"', "`": "a name in `…`", "/": "a comment /* … */"}


def tokens(text: str) -> list[Token]:
    """All tokens and an end token."""
    if len(text) > CHARACTERS_MAX:
        raise SqlError(f"it is longer than {CHARACTERS_MAX:,} characters")
    return [*_tokens(text), Token("end", "", len(text))]


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (text.startswith("/*", at) and match.lastgroup == "sign"):
            sign = text[at]
            what = _OPEN.get(sign)
            raise SqlError(f"{where(text, at)}: " + (f"{what} has no end" if what else f"unexpected {sign!r}"))
        group = str(match.lastgroup)
        if text.startswith("/*+", at):
            raise Unsupported("a hint")
        at = match.end()
        match group:
            case "word" | "number" | "sign" | "text":
                yield Token(group, match[group], match.start())
            case "quoted":
                yield Token("quoted", match[group].replace("``", "`"), match.start())
            case "text2":
                yield Token("text", match[group], match.start())


def where(text: str, at: int) -> str:
    """A position for messages: the character, and the line if there are several."""
    line = text.count("\n", 0, at)
    column = at - (text.rfind("\n", 0, at) + 1)
    return f"line {line + 1}, character {column + 1}" if "\n" in text.strip() else f"character {at + 1}"
