"""Admits only pages of this console in a browser on this machine, and local programs.

A page of another origin could send requests to a loopback address. Three rules keep it out: the Host must be a name
of the loopback (else a foreign name could be pointed here: DNS rebinding), an Origin must be our own, and every
change must carry a header that a foreign page cannot send without a preflight request, which is never answered.

If others can reach the console, the Host may also be an IP address, which cannot be rebound, or a name that was given
at the start; and requests for data need a login. A live view ends with its login session.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.console import login as logins
from millpond.console.login import Login, Session, tokens_of
from millpond.console.shapes import BODY_BYTES_MAX

CHANGE_HEADER: Final = "x-millpond-console"
READS: Final = ("GET", "HEAD")
METHODS: Final = (*READS, "POST", "PATCH", "DELETE")
ADDRESS_BYTES_MAX: Final = 8 << 10

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # No text becomes markup, not even by a bug: the browser refuses innerHTML.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The guard's settings."""

    is_read_only: bool = False
    login: Login | None = None
    """None if only this machine can reach the console, which then needs no login."""
    names: frozenset[str] = frozenset()
    """Host names that are allowed besides those of the loopback."""
    is_open: bool = False
    """Whether others than this machine can reach it."""

    def takes_host(self, host: str) -> bool:
        """An IP address cannot be rebound, and browsers resolve "localhost" themselves."""
        name = _name_of(host)
        if name == "localhost" or name in self.names:
            return True
        address = _address(name)
        if address is None:
            return False
        return address.is_loopback or (self.is_open and not address.is_unspecified)


def _name_of(host: str) -> str:
    """Without the port, which may differ because of forwarding."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


class Guard:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, refused: Counter[str], rules: Rules) -> None:
        self._app = app
        self._refused = refused
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal, session = self._judge(scope)

        async def receive_guarded() -> Message:
            return await self._receive(receive, session)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (refusal or self._app)(scope, receive_guarded, send_guarded)

    async def _receive(self, receive: Receive, session: Session | None) -> Message:
        """Reports a disconnect when the login session ends, because live views last for days."""
        login = self._rules.login
        if login is None or session is None:
            return await receive()
        message = asyncio.ensure_future(receive())
        waits: list[asyncio.Future[Any]] = [message, asyncio.ensure_future(session.ended.wait())]
        try:
            seconds = max(0.0, login.seconds_left(session))
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else {"type": "http.disconnect"}
        finally:
            for each in waits:
                each.cancel()

    def _judge(self, scope: Scope) -> tuple[Response | None, Session | None]:
        """The refusal, if any, and the login session of the request."""
        headers = Headers(scope=scope)
        if foreign := self._foreign(scope, headers):
            return foreign, None
        session = None
        # The pages are public; data and changes are not.
        if self._rules.login is not None and scope["path"].startswith("/api/") and scope["path"] not in logins.PATHS:
            session = self._rules.login.session(tokens_of(headers))
            if session is None:
                return self._refuse(401, "login", "Log in first."), None
        return self._unfit(scope, headers), session

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuses foreign host names and origins."""
        host = headers.get("host", "")
        if not self._rules.takes_host(host):
            return self._refuse(
                403,
                "host",
                "The console answers only to 127.0.0.1 and localhost: use these, or allow other names with --name."
                if not self._rules.is_open
                else "The console does not answer to this name: use its address, or start it with --name.",
            )
        origin = headers.get("origin")
        is_foreign = origin is not None and origin != f"{scope['scheme']}://{host}"
        # A link from elsewhere may open a page, but only our own pages may read or change data.
        is_page = scope["method"] in READS and not scope["path"].startswith("/api/")
        if is_foreign or (not is_page and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")):
            return self._refuse(403, "origin", "The request came from a page of another origin.")
        return None

    def _unfit(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuses methods, addresses and bodies that no handler takes."""
        if scope["method"] not in METHODS:
            return self._refuse(405, "method", f"The console does not support {scope['method']}.")
        if len(scope["raw_path"]) + len(scope["query_string"]) > ADDRESS_BYTES_MAX:
            return self._refuse(414, "address", "The address is too long.")
        if scope["method"] in READS:
            return None
        if headers.get(CHANGE_HEADER) != "1":
            return self._refuse(403, "header", f"Changes need the header {CHANGE_HEADER}: 1.")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return self._refuse(415, "type", "Changes must be JSON (application/json).")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return self._refuse(413, "size", f"A request may have at most {BODY_BYTES_MAX:,} bytes.")
        if self._rules.is_read_only and scope["path"] not in logins.PATHS:
            return self._refuse(
                403, "read-only", "This console is read-only: start it without --read-only to change something."
            )
        return None

    def _refuse(self, status: int, rule: str, sentence: str) -> Response:
        self._refused[rule] += 1
        return JSONResponse({"error": sentence}, status)
