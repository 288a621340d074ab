"""Recognises settings that hold secrets by name: those of Kafka clients, Spark and object stores.

Everything that shows settings uses this list. Hiding too much costs a look into a file; showing too much cannot be
undone.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "(hidden)"
"""What replaces a secret."""

_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|jaas|credential|private|oauthbearer\.config"
    # Keys that grant access, but not those that only have a location (ssl.key.location) or name a column.
    r"|key\.pem|\.key$|(?:access|account|api|sas|shared|storage)[._-]?key|connection[._-]?string"
    r"|(?:^|[._-])sas(?:[._-]|$)",
    re.IGNORECASE,
)


_HARMLESS: Final = re.compile(r"[._](?:bytes|class|file|ms|rate|seconds|type)$", re.IGNORECASE)
"""Suffixes of names that state a duration, an amount or a location: `delegation.token.max.lifetime.ms`."""


def is_secret(name: str) -> bool:
    """Whether the value of this setting must not be shown."""
    return _SECRET.search(name) is not None and _HARMLESS.search(name) is None


def shown(name: str, value: str) -> str:
    """The value as it may be shown."""
    return HIDDEN if is_secret(name) else value
