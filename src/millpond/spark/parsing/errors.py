"""What can be wrong with a schema, and with one value."""

from __future__ import annotations

from typing import Final

from millpond.client.errors import ConfigError

SHOWN_CHARACTERS_MAX: Final = 60


class SchemaError(ConfigError):
    """A schema that cannot be read, or that says what a value cannot be read as."""


class Fault(ValueError):
    """A value that is not what its schema says. The text is the reason, short, for a person."""


def shown(text: str) -> str:
    """Something of the text, for a reason: enough to find it, never all of a large one."""
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
