"""What a node fetches from elsewhere: small documents by https, or from a file."""

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
    """Implements `World.fetch`: each document on a thread of its own, for which nobody waits at the end."""

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
            # Also a bug: told on the loop, it ends the process as any other.
            self._tell(later.fail, error)
        else:
            self._tell(later.finish, data)

    def _tell(self, callback: Callable[..., None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop closed meanwhile; there is nobody left to tell.
            if not self._loop.is_closed():
                raise


def fetch(url: str) -> bytes:
    """The whole document; waits for it. OSError where it cannot be had, ValueError for a URL that is not fetched."""
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
        # In the clear anybody on the way could put his own keys there.
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
                    raise TimeoutError(f"it takes longer than {TIMEOUT_SECONDS} s")
    except HTTPException as fault:
        # What the other side says is no HTTP; no error of the system to urllib.
        raise OSError(f"the answer makes no sense: {type(fault).__name__}") from None
    return _all_of(data)


def _all_of(data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    return data
