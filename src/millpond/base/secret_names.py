"""Which settings hold secrets, by their names alone: those of Kafka's clients, of Spark, and of stores of objects.

One list for all that shows settings. To hide too much costs a look into a file; to show too much cannot be undone.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "(hidden)"
"""What stands in the place of a secret."""

_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|jaas|credential|private|oauthbearer\.config"
    # Keys that open something, and not those that only have a place (ssl.key.location) or name a column.
    r"|key\.pem|\.key$|(?:access|account|api|sas|shared|storage)[._-]?key|connection[._-]?string"
    r"|(?:^|[._-])sas(?:[._-]|$)",
    re.IGNORECASE,
)


_HARMLESS: Final = re.compile(r"[._](?:bytes|class|file|ms|rate|seconds|type)$", re.IGNORECASE)
"""How names end that say how long, how much, or where: `delegation.token.max.lifetime.ms`, `password.file`."""


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name is one that is not shown."""
    return _SECRET.search(name) is not None and _HARMLESS.search(name) is None


def shown(name: str, value: str) -> str:
    """The value as it may be shown."""
    return HIDDEN if is_secret(name) else value
