"""Which dead letters are meant: the options that the `dlq` commands share, read into a filter."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

from millpond.cli.dlq_read import Filter, Place
from millpond.cli.group import read_moment

F = TypeVar("F", bound=Callable[..., Any])

_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})(?:-([0-9]{1,18}))?")
PLACES_MAX: Final = 100_000


def filter_options(function: F) -> F:
    """Adds --error, --key, --since and --until to a command, which receives them together as `wanted`."""

    @click.option(
        "-e", "--error", "errors", metavar="TYPE", multiple=True, help="Only this type of error; repeatable."
    )
    @click.option("-k", "--key", "keys", metavar="KEY", multiple=True, help="Only records with this key; repeatable.")
    @click.option("--since", metavar="TIME", help="Only letters written since then: 2026-01-31T08:30 or 1h.")
    @click.option("--until", metavar="TIME", help="Only letters written before then.")
    @wraps(function)
    def with_filter(
        *arguments: Any,
        errors: tuple[str, ...],
        keys: tuple[str, ...],
        since: str | None,
        until: str | None,
        **options: Any,
    ) -> Any:
        wanted = Filter(
            frozenset(errors),
            frozenset(key.encode() for key in keys),
            None if since is None else read_moment("--since", since),
            None if until is None else read_moment("--until", until),
        )
        return function(*arguments, wanted=wanted, **options)

    return with_filter  # type: ignore[return-value]


def read_places(texts: tuple[str, ...]) -> frozenset[Place]:
    """Letters named as PARTITION:OFFSET or PARTITION:FIRST-LAST."""
    found: set[Place] = set()
    for text in texts:
        parts = _PLACE.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--offset {text}: give it as PARTITION:OFFSET or PARTITION:FIRST-LAST.")
        first = int(parts[2])
        last = int(parts[3]) if parts[3] else first
        if last - first + len(found) >= PLACES_MAX:
            raise click.UsageError(f"--offset names more than {PLACES_MAX:,} letters: use --since, or --all.")
        found.update((int(parts[1]), offset) for offset in range(first, last + 1))
    return frozenset(found)


def read_rate(text: str | None) -> float | None:
    """Records a second, as `50` or `50/s`."""
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise click.UsageError(f"--rate {text}: give records a second, as 50/s.")
    return rate
