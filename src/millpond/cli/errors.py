"""Errors as a person reads them: one sentence that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

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


_WORDS: Final = {
    "_TRANSPORT": "the connection was lost; is the node still running?",
    "_ALL_BROKERS_DOWN": "no broker can be reached; is the node still running?",
    "_TIMED_OUT": "no answer came in time; is the node still running?",
    "_MSG_TIMED_OUT": "the record was not acknowledged in time; `millpond status` says how the nodes are.",
    "MSG_SIZE_TOO_LARGE": "a record is too large; raise -X message.max.bytes and the topic's max.message.bytes.",
    "_UNSUPPORTED_FEATURE": "the cluster is too old for this command.",
    "_AUTHENTICATION": "the cluster refused the credentials; give others with -X sasl.username=… -X sasl.password=…",
}
"""What librdkafka's own errors mean to the person at the keyboard."""


def reason(error: KafkaError) -> str:
    """Why a broker or the client library refused, in words. The broker's own message is the best one there is."""
    own = _WORDS.get(error.name())
    if own is not None:
        return own
    return sentence(str(error.str()).removeprefix("Broker: ") or str(error.name()))


def failed(what: str, error: KafkaError) -> Failed:
    """`what` could not be done, because of `error`."""
    return Failed(f"{what}: {reason(error)}")
