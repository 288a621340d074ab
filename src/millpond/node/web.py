"""What a node fetches from elsewhere: small documents by https, or from a file. Called off the loop."""

from __future__ import annotations

from typing import Final

TIMEOUT_SECONDS: Final = 10
BYTES_MAX: Final = 1 << 20


def fetch(url: str) -> bytes:
    """The whole document. OSError where it cannot be had, ValueError for a URL that is not fetched."""
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

    with build_opener(NoRedirect, HTTPSHandler).open(url, timeout=TIMEOUT_SECONDS) as response:
        return _all_of(response.read(BYTES_MAX + 1))


def _all_of(data: bytes) -> bytes:
    if len(data) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    return data
