"""Who may ask: only pages of this console, in a browser of this machine, or programs that are on it anyway.

A page of another origin could send requests to a loopback address. Three rules keep it out: the Host must be a name
of the loopback (else a foreign name could be pointed here: DNS rebinding), an Origin must be our own, and whatever
changes something must carry a header that a foreign page cannot send without asking first. Nobody answers that.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine that nobody else can point elsewhere. Any port: it may have been forwarded."""

CHANGE_HEADER: Final = "x-millpond-console"
READS: Final = ("GET", "HEAD")
METHODS: Final = (*READS, "POST", "PATCH", "DELETE")
BODY_BYTES_MAX: Final = 2 << 20
ADDRESS_BYTES_MAX: Final = 8 << 10

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # No text becomes markup, not even by a slip of ours: the browser itself refuses innerHTML.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Stands before everything else."""

    def __init__(self, app: ASGIApp, refused: Counter[str], *, is_read_only: bool) -> None:
        self._app = app
        self._refused = refused
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
            return self._refuse(403, "host", "The console answers to 127.0.0.1 and localhost only: open it by these.")
        origin = headers.get("origin")
        is_foreign = origin is not None and origin != f"{scope['scheme']}://{host}"
        # A link from elsewhere may open a page; nothing but our own pages may read or change data.
        is_page = scope["method"] in READS and not scope["path"].startswith("/api/")
        if is_foreign or (not is_page and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")):
            return self._refuse(403, "origin", "This was asked by a page of another origin.")
        if scope["method"] not in METHODS:
            return self._refuse(405, "method", f"The console has no use for {scope['method']}.")
        if len(scope["raw_path"]) + len(scope["query_string"]) > ADDRESS_BYTES_MAX:
            return self._refuse(414, "address", "The address is too long.")
        if scope["method"] in READS:
            return None
        if headers.get(CHANGE_HEADER) != "1":
            return self._refuse(403, "header", f"What changes something needs the header {CHANGE_HEADER}: 1.")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return self._refuse(415, "type", "What changes something is said in JSON (application/json).")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return self._refuse(413, "size", f"A request may have {BODY_BYTES_MAX:,} bytes.")
        if self._is_read_only:
            return self._refuse(
                403, "read-only", "This console is read-only: start it without --read-only to change something."
            )
        return None

    def _refuse(self, status: int, rule: str, sentence: str) -> Response:
        self._refused[rule] += 1
        return JSONResponse({"error": sentence}, status)
