"""The base of all names that a shell completes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.types import StringParamType

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAMES_MAX: Final = 1000
_HARMLESS: Final = re.compile(r"[\w.:@%+/,][\w.:@%+=/,-]*")
"""Names that are safe in a shell. Anyone can name a group `$(rm -r .)` or `--yes`, and bash inserts completions
without quotes: one more key would execute it."""


class Name(StringParamType):
    """Any text; subclasses differ in what they offer."""

    def candidates(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        fitting = {each for each in self.candidates(ctx, incomplete) if each.startswith(incomplete)}
        names = sorted(filter(_HARMLESS.fullmatch, fitting))
        return [CompletionItem(each) for each in names[:NAMES_MAX]]
