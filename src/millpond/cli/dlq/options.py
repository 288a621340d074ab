"""The options that select dead letters, shared by the `dlq` commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millpond.cli.options import read_moment

if TYPE_CHECKING:
    from millpond.admin.dead_letters.letters import LetterId


F = TypeVar("F", bound=Callable[..., Any])

_LETTERS: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})(?:-([0-9]{1,18}))?")
LETTERS_MAX: Final = 100_000


def filter_options(function: F) -> F:
    """Adds --error, --key, --since and --until to a command, which receives them together as `wanted`."""

    @click.option(
        "-e", "--error", "errors", metavar="TYPE", multiple=True, help="Only this type of error; repeatable."
    )
    @click.option("-k", "--key", "keys", metavar="KEY", multiple=True, help="Only records with this key; repeatable.")
    @click.option("--since", metavar="TIME", help="Only letters written since this time: 2026-01-31T08:30 or 1h.")
    @click.option("--until", metavar="TIME", help="Only letters written before this time.")
    @wraps(function)
    def with_filter(
        *arguments: Any,
        errors: tuple[str, ...],
        keys: tuple[str, ...],
        since: str | None,
        until: str | None,
        **options: Any,
    ) -> Any:
        from millpond.admin.dead_letters.letters import Filter

        selection = Filter(
            frozenset(errors),
            frozenset(key.encode() for key in keys),
            None if since is None else read_moment("--since", since),
            None if until is None else read_moment("--until", until),
        )
        return function(*arguments, selection=selection, **options)

    return with_filter  # type: ignore[return-value]


def read_letter_ids(texts: tuple[str, ...]) -> frozenset[LetterId]:
    """Letters named as PARTITION:OFFSET or PARTITION:FIRST-LAST."""
    from millpond.admin.dead_letters.letters import LetterId

    ids: set[LetterId] = set()
    for text in texts:
        parts = _LETTERS.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--offset {text}: give it as PARTITION:OFFSET or PARTITION:FIRST-LAST.")
        first = int(parts[2])
        last = int(parts[3]) if parts[3] else first
        if last - first + len(ids) >= LETTERS_MAX:
            raise click.UsageError(f"--offset names more than {LETTERS_MAX:,} letters: use --since, or --all.")
        ids.update(LetterId(int(parts[1]), offset) for offset in range(first, last + 1))
    return frozenset(ids)


def read_rate(text: str | None) -> float | None:
    """Records per second, as `50` or `50/s`."""
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise click.UsageError(f"--rate {text}: give records per second, as 50/s.")
    return rate
