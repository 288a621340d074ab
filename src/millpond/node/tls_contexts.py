"""OpenSSL contexts for listeners and connections: created from PEM files, and recreated when they change.

Called from the handshake threads: reading files and keys would block the loop.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from millpond.base.tls import ClientAuth, ClientTls, ServerTls, TlsFiles

LOOK_SECONDS: Final = 1.0
"""How often the files are checked, and only while clients connect."""

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy, and authenticated encryption."""

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

Stamp = tuple[tuple[int, int, int] | None, ...]

OnReload = Callable[[str, Exception | None], None]
"""Called on any thread with files that were reloaded (the first one's name), or why they could not be."""


class UnusableFiles(OSError):
    """A certificate, a key or the authorities cannot be used; the text says which file and why."""


class TlsContext:
    """The context of one listener or one kind of connection. UnusableFiles if it cannot be created at first.

    Changed files are reloaded; while that fails the previous ones stay in use.
    """

    def __init__(self, tls: ServerTls | ClientTls, on_reload: OnReload) -> None:
        self._tls = tls
        self._on_reload = on_reload
        self._lock = threading.Lock()
        self._stamp = _stamp(tls.files)
        self._context = _made(tls)
        self._looked_at = time.monotonic()

    def current(self) -> ssl.SSLContext:
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                self._look()
            return self._context

    def _look(self) -> None:
        stamp = _stamp(self._tls.files)
        if stamp == self._stamp:
            return
        # Set first: unusable files are retried, and reported again, only after another change.
        self._stamp = stamp
        try:
            self._context = _made(self._tls)
        except UnusableFiles as fault:
            self._on_reload(self._tls.files.certificate, fault)
        else:
            self._on_reload(self._tls.files.certificate, None)


def _stamp(files: TlsFiles) -> Stamp:
    """Differs if a file was written, replaced or removed."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in filter(None, (files.certificate, files.key, files.authorities)):
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _made(tls: ServerTls | ClientTls) -> ssl.SSLContext:
    is_server = isinstance(tls, ServerTls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[each] for each in tls.versions] or list(_VERSIONS.values())
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if isinstance(tls, ServerTls):
        context.verify_mode = _VERIFY[tls.client_auth]
    else:
        context.check_hostname = tls.checks_host
    try:
        context.set_ciphers(":".join(tls.ciphers) or CIPHERS)
    except ssl.SSLError:
        raise UnusableFiles(0, f"OpenSSL supports none of the ciphers {', '.join(tls.ciphers)}") from None
    _load(context, tls.files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.certificate:
        try:
            # An encrypted key without a password must not prompt on the terminal.
            context.load_cert_chain(files.certificate, files.key or None, lambda: files.key_password)
        except OSError as error:
            names = files.certificate if files.key in ("", files.certificate) else f"{files.certificate}, {files.key}"
            raise UnusableFiles(error.errno or 0, f"{names} cannot be used: {_why(error)}") from None
    if files.authorities:
        try:
            context.load_verify_locations(files.authorities)
        except OSError as error:
            raise UnusableFiles(error.errno or 0, f"{files.authorities} cannot be used: {_why(error)}") from None


def _why(error: OSError) -> str:
    """OpenSSL names common mistakes; its errors for files that are not PEM are no help."""
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLError):
        if reason in (None, "PEM lib", "PEM_LIB", "NO_START_LINE"):
            return "it must be PEM with a private key and its matching certificate"
        return str(reason).lower().replace("_", " ")
    return (error.strerror or str(error)).lower()
