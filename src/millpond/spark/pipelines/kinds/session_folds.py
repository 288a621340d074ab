"""The columns of a session, and the measures of sessions with our own state, which are updated event by event."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millpond.spark.pipelines.values import DeclarationError, nearest

START: Final = "session_start"
END: Final = "session_end"
EVENTS: Final = "events"
FOLDS: Final = ("count", "sum", "min", "max", "first", "last")


@dataclass(frozen=True)
class Fold:
    """A measure that is updated event by event: its input expression and its aggregate function."""

    name: str
    function: str
    sql: str


_FOLD: Final = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


def read_folds(measures: Mapping[str, str]) -> tuple[Fold, ...]:
    """The measures as folds; sessions with our own state support no others."""
    folds: list[Fold] = []
    for name, sql in measures.items():
        call = _FOLD.fullmatch(sql)
        function = call[1].lower() if call else sql
        if call is None or function not in FOLDS or not _is_one_argument(call[2]):
            raise DeclarationError(
                f"measures.{name} = {sql!r}: with ends_when or longest a measure is one call"
                f"{nearest(function, FOLDS)}"
            )
        inner = call[2].strip()
        folds.append(Fold(name, function, "true" if inner == "*" else inner))
    return tuple(folds)


def _is_one_argument(text: str) -> bool:
    """Whether the text between the first and the last parenthesis is balanced: `a) + sum(b` is not an argument."""
    depth = 0
    for sign in re.sub(r"'[^']*'", "", text):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0 and bool(text.strip())
