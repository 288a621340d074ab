"""What all names have in common that a shell completes."""

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
"""Names that a shell takes for words. Anybody may call a group `$(rm -r .)` or `--yes`, and bash puts on the line
what it is offered, without quotes: one more key, and it would be carried out."""


class Name(StringParamType):
    """Any text; what differs is which are offered."""

    def known(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        fitting = {each for each in self.known(ctx, incomplete) if each.startswith(incomplete)}
        names = sorted(filter(_HARMLESS.fullmatch, fitting))
        return [CompletionItem(each) for each in names[:NAMES_MAX]]
