"""The TLS settings of a listener or a connection, as plain values.

Files are named, not read: the network reads them, and again when they change.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from millpond.base.values import dataclass

VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class ClientAuth(Enum):
    """Whether clients must present a certificate, in Kafka's terms."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of the certificate, its key and the authorities, in PEM. An empty path is unused."""

    certificate: str = ""
    """The chain; the same file may contain the key."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    authorities: str = ""
    """The trusted certificates."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    files: TlsFiles
    client_auth: ClientAuth = ClientAuth.NONE
    versions: tuple[str, ...] = VERSIONS
    ciphers: tuple[str, ...] = ()
    """For TLS 1.2, by OpenSSL names; empty for the default."""
    handshake_ms_max: int = 10_000


@dataclass(frozen=True, slots=True)
class ClientTls:
    files: TlsFiles
    checks_host: bool = True
    """Whether the peer's certificate must name the requested host."""
    versions: tuple[str, ...] = VERSIONS
    ciphers: tuple[str, ...] = ()
    handshake_ms_max: int = 10_000
