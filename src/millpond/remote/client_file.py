"""`client.properties`: a cluster's addresses and credentials in one file, as Kafka's tools take it.

`millpond up --secure` writes one. MILLPOND_CLIENT_CONFIG names it for every client of a process: commands, the Python
client, Spark. Explicit settings override it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from millpond.remote.errors import ConfigError
from millpond.remote.security import SETTINGS, librdkafka
from millpond.remote.signed_tokens import URL

VARIABLE: Final = "MILLPOND_CLIENT_CONFIG"
BYTES_MAX: Final = 1 << 20

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SIGNS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PARTS: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*(?:[=:]\s*|\s+|$)(.*)", re.DOTALL)

_JAVA: Final = frozenset(
    {
        "sasl.jaas.config",
        *("ssl.truststore." + each for each in ("location", "type", "certificates")),
        *("ssl.keystore." + each for each in ("type", "certificate.chain", "key")),
    }
)
"""Settings that librdkafka rejects as specific to Java."""


def client_settings() -> dict[str, str]:
    """The settings in MILLPOND_CLIENT_CONFIG's file; empty without that variable."""
    path = os.environ.get(VARIABLE)
    return read_client_file(path, VARIABLE) if path else {}


def read_client_file(path: str, origin: str = "the client's settings") -> dict[str, str]:
    """The settings in a properties file. ConfigError if it cannot be read; the message contains no values."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(BYTES_MAX)
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{origin}: {path} cannot be read: {reason}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Parse them as Java does: `name=value`, `name: value`, comments, lines continued with a backslash."""
    settings = {}
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":
            continue
        while _goes_on(whole):
            whole = whole[:-1] + next(lines, "").lstrip()
        parts = _PARTS.match(whole)
        if parts is not None:
            settings[_unescaped(parts[1])] = _unescaped(parts[2]).rstrip()
    return settings


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def sign(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _SIGNS.get(escaped, escaped)

    return _ESCAPE.sub(sign, text)


def for_librdkafka(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with Java's security settings renamed for librdkafka."""
    is_java = (
        settings.keys() & _JAVA
        or str(settings.get("ssl.keystore.location", "")).endswith(".pem")
        or (URL in settings and settings.get("sasl.oauthbearer.method") != "oidc")
    )
    if not is_java:
        return dict(settings)
    security = {name: str(value) for name, value in settings.items() if name in SETTINGS}
    return {name: value for name, value in settings.items() if name not in SETTINGS} | librdkafka(security)
