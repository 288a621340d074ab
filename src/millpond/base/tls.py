"""What a listener or a connection is told of TLS: plain values, from which the network makes what it needs.

Files are named, not read: the network reads them, and again when they change.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from millpond.base.values import dataclass

VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class ClientAuth(Enum):
    """Whether clients have to show a certificate of their own, by Kafka's words."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate, its key and the authorities stand, as PEM. An empty name is a file that is not used."""

    certificate: str = ""
    """The chain; the key may stand in the same file."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    authorities: str = ""
    """Whose certificates are believed."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    files: TlsFiles
    client_auth: ClientAuth = ClientAuth.NONE
    versions: tuple[str, ...] = VERSIONS
    ciphers: tuple[str, ...] = ()
    """For TLS 1.2, by the names of OpenSSL; none for our own choice."""
    handshake_ms_max: int = 10_000


@dataclass(frozen=True, slots=True)
class ClientTls:
    files: TlsFiles
    checks_host: bool = True
    """Whether the peer's certificate has to name the host that was asked for."""
    versions: tuple[str, ...] = VERSIONS
    ciphers: tuple[str, ...] = ()
    handshake_ms_max: int = 10_000
