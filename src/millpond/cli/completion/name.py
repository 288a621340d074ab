"""What all names have in common that a shell completes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.types import StringParamType

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAMES_MAX: Final = 1000


class Name(StringParamType):
    """Any text; what differs is which are offered."""

    def known(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        names = sorted({each for each in self.known(ctx, incomplete) if each.startswith(incomplete)})
        return [CompletionItem(each) for each in names[:NAMES_MAX]]
