"""Small documents that a node fetches by https, or from a file."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

from millpond.base.later import Later

TIMEOUT_SECONDS: Final = 10
BYTES_MAX: Final = 1 << 20
PIECE_BYTES: Final = 64 << 10


class Web:
    """Implements `World.fetch`: each document on its own thread, which shutdown does not wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def fetch(self, url: str) -> Later[bytes]:
        later: Later[bytes] = Later()
        try:
            threading.Thread(target=self._work, args=(url, later), name="millpond-fetch", daemon=True).start()
        except RuntimeError as fault:
            later.fail(OSError(str(fault)))
        return later

    def _work(self, url: str, later: Later[bytes]) -> None:
        try:
            data = fetch(url)
        except Exception as error:
            # Bugs too: raised on the loop, they end the process like any other.
            self._tell(later.fail, error)
        else:
            self._tell(later.finish, data)

    def _tell(self, callback: Callable[..., None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop may have closed in the meantime.
            if not self._loop.is_closed():
                raise


def fetch(url: str) -> bytes:
    """The whole document, blocking. OSError if it cannot be fetched, ValueError for an unsupported URL."""
    from http.client import HTTPException
    from urllib.parse import urlsplit
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener, url2pathname

    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(url2pathname(parts.path), "rb") as file:
            return _all_of(file.read(BYTES_MAX + 1))
    if parts.scheme != "https" and not (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    ):
        # Over plain http, anyone on the path could substitute their own keys.
        raise ValueError("only https and file URLs are fetched")

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    deadline = time.monotonic() + TIMEOUT_SECONDS
    data = b""
    try:
        with build_opener(NoRedirect, HTTPSHandler).open(url, timeout=TIMEOUT_SECONDS) as response:
            while len(data) <= BYTES_MAX and (piece := response.read1(PIECE_BYTES)):
                data += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"timed out after {TIMEOUT_SECONDS} s")
    except HTTPException as fault:
        # The response is not HTTP, which urllib does not report as an OSError.
        raise OSError(f"invalid response: {type(fault).__name__}") from None
    return _all_of(data)


def _all_of(data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise ValueError(f"the document has more than {BYTES_MAX} bytes")
    return data
