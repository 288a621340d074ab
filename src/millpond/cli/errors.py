"""Errors for people: one sentence that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.admin.library import reason
from millpond.cli.text import safe

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class Failed(click.ClickException):
    """The command failed; the message says why and what to do. Exit code 1."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        # Names and messages from outside may contain control characters.
        click.echo(f"millpond: {safe(self.message)}", err=True)


def cause(error: Exception) -> str:
    """The system's reason, as part of a sentence."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def sentence(text: str) -> str:
    """Adds a full stop, unless the text ends with punctuation."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def failed(what: str, error: KafkaError) -> Failed:
    """`what` could not be done, because of `error`."""
    return Failed(f"{what}: {reason(error)}")
