"""Logins by password, if others than this machine's users can reach the console.

A login session is a random number in a cookie that no script can read and that the browser sends only to our own
pages. Only its hash is kept here. Passwords are compared in constant time, and attempts are limited per minute.

Failed attempts are counted by address and in total. A browser that has logged in before has a separate count:
attackers, from its address or from a thousand others, cannot lock it out. Its cookie outlives the login session only
for that.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millpond.console.shapes import BadRequest, Body

COOKIE: Final = "millpond-session"
"""Followed by the port: a browser sends a cookie to every port of a host, which may have another console."""
TOKEN_SIGNS: Final = 43
PATH: Final = "/api/login"
PATHS: Final = (PATH, "/api/logout")

PASSWORD_SIGNS_MIN: Final = 8
PASSWORD_SIGNS_MAX: Final = 1_024
BODY_BYTES_MAX: Final = 16 << 10
SESSION_SECONDS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 200
BROWSERS_MAX: Final = 1_000
BROWSER_SECONDS: Final = 90 * 24 * 3600.0
"""How long a browser is remembered as having logged in."""
ADDRESSES_MAX: Final = 1_000

TRIES: Final = 5
TRIES_PER_SECOND: Final = 1 / 12
"""Rate of attempts per address, or per browser that has logged in before: a burst, then five a minute."""
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
            f"{path}: its first line must be a password of {PASSWORD_SIGNS_MIN} to {PASSWORD_SIGNS_MAX:,} characters"
        )
    return password


class _Bucket:
    """A token bucket: a burst, and then a rate per second."""

    def __init__(self, size: float, per_second: float, now: float) -> None:
        self._size, self._per_second = size, per_second
        self._level, self._at = size, now

    def has(self, now: float) -> bool:
        self._level = min(self._size, self._level + (now - self._at) * self._per_second)
        self._at = now
        return self._level >= 1

    def take(self) -> None:
        self._level -= 1


@dataclass(slots=True, eq=False)
class Session:
    ends_at: float
    """Expiry time, on the clock of `Login`."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it was ended early: by a logout, or because there are too many."""


class Login:
    def __init__(self, password: str, clock: Clock = time.monotonic) -> None:
        self._password_hash = _hash(password)
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        """Sessions by the hash of their token."""
        self._all = _Bucket(TRIES_OF_ALL, TRIES_OF_ALL_PER_SECOND, clock())
        self._tries: dict[str, _Bucket] = {}
        """Buckets by address."""
        self._browsers: dict[bytes, _Bucket] = {}
        """Browsers that have logged in before, by the hash of their token."""

    def begin(self, password: str, address: str, tokens: Iterable[str] = ()) -> str | None:
        """The token of a new login session; None for a wrong password. Raises TooManyTries without checking it."""
        now = self._clock()
        buckets = self._buckets(address, tokens, now)
        if not all(each.has(now) for each in buckets):
            raise TooManyTries
        if not hmac.compare_digest(_hash(password), self._password_hash):
            # Only failures count: frequent successful logins are not limited.
            for each in buckets:
                each.take()
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            self._end(next(iter(self._sessions)))
        token = secrets.token_urlsafe(32)
        assert len(token) == TOKEN_SIGNS
        self._sessions[_hash(token)] = Session(now + SESSION_SECONDS)
        _keep(self._browsers, _hash(token), _Bucket(TRIES, TRIES_PER_SECOND, now), BROWSERS_MAX)
        return token

    def session(self, tokens: Iterable[str]) -> Session | None:
        """The login session of one of these tokens, if it is still valid."""
        for token in tokens:
            session = self._sessions.get(_hash(token))
            if session is not None and self.seconds_left(session) > 0:
                return session
        return None

    def seconds_left(self, session: Session) -> float:
        return session.ends_at - self._clock()

    def end(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self._end(_hash(token))

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.ended.set()

    def _buckets(self, address: str, tokens: Iterable[str], now: float) -> list[_Bucket]:
        for token in tokens:
            mine = self._browsers.get(_hash(token))
            if mine is not None:
                return [mine]
        origin = _origin(address)
        if origin not in self._tries:
            _keep(self._tries, origin, _Bucket(TRIES, TRIES_PER_SECOND, now), ADDRESSES_MAX)
        return [self._tries[origin], self._all]


class TooManyTries(Exception):
    """Wait before the next one."""


K = TypeVar("K")


def _keep(buckets: dict[K, _Bucket], key: K, bucket: _Bucket, most: int) -> None:
    while len(buckets) >= most:
        buckets.pop(next(iter(buckets)))
    buckets[key] = bucket


def _origin(address: str) -> str:
    """One IPv6 client has 2^64 addresses: they count as one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def cookie_name(host: str) -> str:
    """The name of the session cookie for the console at this Host."""
    port = host.rpartition("]")[2].rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE


def tokens_of(headers: Headers) -> list[str]:
    """The candidates for our token among the cookies of a request.

    Other programs on the same host may set any cookies: none of them interferes, and each is read only once.
    """
    name = cookie_name(headers.get("host", ""))
    pairs = (each.strip().partition("=") for header in headers.getlist("cookie") for each in header.split(";"))
    return [value for key, _, value in pairs if key == name and len(value) == TOKEN_SIGNS]


def routes(login: Login | None) -> list[Route]:
    async def log_in(request: Request) -> Response:
        body = await Body.read(request, BODY_BYTES_MAX)
        password = body.text("password")
        if login is None:
            return JSONResponse({})
        if len(password) > PASSWORD_SIGNS_MAX:
            raise BadRequest("The password is too long.")
        tokens = tokens_of(request.headers)
        try:
            token = login.begin(password, request.client.host if request.client else "", tokens)
        except TooManyTries:
            return JSONResponse({"error": "Too many attempts: wait a minute."}, 429, {"retry-after": "60"})
        if token is None:
            return JSONResponse({"error": "Wrong password."}, 401)
        login.end(tokens)
        response = JSONResponse({})
        response.set_cookie(
            cookie_name(request.headers.get("host", "")),
            token,
            max_age=round(BROWSER_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def log_out(request: Request) -> Response:
        if login is not None:
            login.end(tokens_of(request.headers))
        return JSONResponse({})

    return [Route(PATH, log_in, methods=["POST"]), Route("/api/logout", log_out, methods=["POST"])]
