"""Asking before something is lost."""

from __future__ import annotations

import sys

import click


def confirm(question: str, *, yes: bool, to_do: str) -> None:
    """Ask, unless it was answered with --yes. `to_do` is what --yes would do, as in "delete without a question"."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is nobody to ask: add --yes to {to_do}.")
    click.confirm(question, abort=True)
