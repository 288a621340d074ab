"""Errors of schemas and values."""

from __future__ import annotations

from typing import Final

from millpond.remote.errors import ClientError, ConfigError

SHOWN_CHARACTERS_MAX: Final = 60


class SchemaError(ConfigError):
    """A schema that cannot be read or is not supported."""


class RowError(ClientError):
    """Rows that cannot be written as records."""


class Fault(ValueError):
    """A value that does not match its schema. The message is a short reason."""


def shown(text: str) -> str:
    """An excerpt for a reason: enough to find the value."""
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
