"""Errors as a person reads them: one sentence that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.admin.library import reason
from millpond.cli.text import safe

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class Failed(click.ClickException):
    """The command could not do what it was asked; the message says why and what to do. Exit code 1."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        # Brokers, and whoever named a topic or a group, have chosen some of these words.
        click.echo(f"millpond: {safe(self.message)}", err=True)


def cause(error: Exception) -> str:
    """Why the system refused, as a part of a sentence."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def sentence(text: str) -> str:
    """With a full stop, unless it has an end already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def failed(what: str, error: KafkaError) -> Failed:
    """`what` could not be done, because of `error`."""
    return Failed(f"{what}: {reason(error)}")
