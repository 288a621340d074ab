"""What all names have in common that a shell completes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAMES_MAX: Final = 1000


class Name(click.ParamType):  # type: ignore[type-arg]  # It takes no type before click 8.2.
    """Any text; what differs is which are offered."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def known(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        names = sorted({each for each in self.known(ctx, incomplete) if each.startswith(incomplete)})
        return [CompletionItem(each) for each in names[:NAMES_MAX]]
