"""Who is let in where others than this machine's users can reach the console: whoever knows the password.

A session is a random number in a cookie that no script can read and that the browser sends to our own pages alone.
Only its hash is kept here. Passwords are compared in the same time whatever they are, and tried a few times a minute.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millpond.console.shapes import BadRequest, Body

COOKIE: Final = "millpond-session"
PATH: Final = "/api/login"
PATHS: Final = (PATH, "/api/logout")

PASSWORD_SIGNS_MIN: Final = 8
PASSWORD_SIGNS_MAX: Final = 1_024
SESSION_SECONDS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 200
ADDRESSES_MAX: Final = 1_000

TRIES: Final = 5
TRIES_PER_SECOND: Final = 1 / 12
"""Of one address: some at once, then five a minute."""
TRIES_OF_ALL: Final = 60
TRIES_OF_ALL_PER_SECOND: Final = 1.0

Clock = Callable[[], float]


class PasswordError(Exception):
    """The file does not hold a password; the message says why."""


def read_password(path: Path) -> str:
    """The first line of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline(PASSWORD_SIGNS_MAX + 2).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise PasswordError(f"{path}: {why}") from None
    if not PASSWORD_SIGNS_MIN <= len(password) <= PASSWORD_SIGNS_MAX:
        raise PasswordError(
            f"{path}: its first line is the password, of {PASSWORD_SIGNS_MIN} to {PASSWORD_SIGNS_MAX:,} signs"
        )
    return password


class _Bucket:
    """So many at once, and then so many a second."""

    def __init__(self, size: float, per_second: float, now: float) -> None:
        self._size, self._per_second = size, per_second
        self._level, self._at = size, now

    def take(self, now: float) -> bool:
        self._level = min(self._size, self._level + (now - self._at) * self._per_second)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True


class Login:
    def __init__(self, password: str, clock: Clock = time.monotonic) -> None:
        self._password_hash = _hash(password)
        self._clock = clock
        self._sessions: dict[bytes, float] = {}
        """When each ends, by the hash of its token."""
        self._all = _Bucket(TRIES_OF_ALL, TRIES_OF_ALL_PER_SECOND, clock())
        self._tries: dict[str, _Bucket] = {}

    def may_try(self, address: str) -> bool:
        """Whether this address may try a password now; every question counts as a try."""
        now = self._clock()
        if address not in self._tries:
            while len(self._tries) >= ADDRESSES_MAX:
                self._tries.pop(next(iter(self._tries)))
            self._tries[address] = _Bucket(TRIES, TRIES_PER_SECOND, now)
        return self._tries[address].take(now) and self._all.take(now)

    def begin(self, password: str) -> str | None:
        """The token of a new session; None for a wrong password."""
        if not hmac.compare_digest(_hash(password), self._password_hash):
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        token = secrets.token_urlsafe(32)
        self._sessions[_hash(token)] = self._clock() + SESSION_SECONDS
        return token

    def knows(self, token: str) -> bool:
        ends = self._sessions.get(_hash(token))
        return ends is not None and self._clock() < ends

    def end(self, token: str) -> None:
        self._sessions.pop(_hash(token), None)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def token_of(cookies: str) -> str:
    """The token among the cookies of a request; "" where there is none."""
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def routes(login: Login | None) -> list[Route]:
    async def log_in(request: Request) -> Response:
        body = await Body.read(request)
        password = body.text("password")
        if login is None:
            return JSONResponse({})
        if len(password) > PASSWORD_SIGNS_MAX:
            raise BadRequest("No password is that long.")
        if not login.may_try(request.client.host if request.client else ""):
            return JSONResponse({"error": "Too many tries: wait a minute."}, 429, {"retry-after": "60"})
        token = login.begin(password)
        if token is None:
            return JSONResponse({"error": "That is not the password."}, 401)
        response = JSONResponse({})
        response.set_cookie(
            COOKIE,
            token,
            max_age=round(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def log_out(request: Request) -> Response:
        if login is not None:
            login.end(token_of(request.headers.get("cookie", "")))
        response = JSONResponse({})
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return [Route(PATH, log_in, methods=["POST"]), Route("/api/logout", log_out, methods=["POST"])]
