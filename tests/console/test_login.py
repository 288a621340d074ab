"""Who is let in where others can reach the console, and by which names it is called."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from millpond.console.guard import Guard, Rules
from millpond.console.login import (
    SESSION_SECONDS,
    SESSIONS_MAX,
    TOKEN_SIGNS,
    TRIES,
    TRIES_OF_ALL,
    Login,
    PasswordError,
    TooManyTries,
    read_password,
    tokens_of,
)
from millpond.node.loopback import open_listener
from millpond.testing import Pond
from support.console import Answer, Console
from support.cpu import least_seconds

PASSWORD = "open sesame"


class Hours:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


HERE = "10.0.0.1"


def test_a_session_is_known_until_it_ends() -> None:
    clock = Hours()
    login = Login(PASSWORD, clock)
    assert login.begin("open sesam", HERE) is None
    assert login.begin(PASSWORD + "\n", HERE) is None
    token, other = login.begin(PASSWORD, HERE), login.begin(PASSWORD, HERE)
    assert token is not None
    assert other is not None
    assert token != other
    assert login.session([token])
    assert login.session(["", "x" * TOKEN_SIGNS, token]), "whatever else there is beside it"
    assert not login.session([token[:-1]])
    assert not login.session([""])
    assert not login.session([])
    ended = login.session([token])
    login.end([token])
    assert not login.session([token])
    assert ended is not None
    assert ended.ended.is_set()
    clock.now += SESSION_SECONDS
    assert not login.session([other])


def test_the_number_of_sessions_is_limited() -> None:
    login = Login(PASSWORD, Hours())
    tokens = [login.begin(PASSWORD, HERE) or "" for _ in range(SESSIONS_MAX)]
    first = login.session(tokens[:1])
    tokens.append(login.begin(PASSWORD, HERE) or "")
    assert [bool(login.session([each])) for each in (tokens[0], tokens[1], tokens[-1])] == [False, True, True]
    assert first is not None
    assert first.ended.is_set(), "what it looks at ends, too"


def is_let_try(login: Login, address: str, tokens: Sequence[str] = ()) -> bool:
    try:
        assert login.begin("wrong", address, tokens) is None
    except TooManyTries:
        return False
    return True


def test_tries_are_limited_by_address_and_in_all() -> None:
    clock = Hours()
    login = Login(PASSWORD, clock)
    assert [is_let_try(login, "10.0.0.1") for _ in range(TRIES + 1)] == [True] * TRIES + [False]
    assert is_let_try(login, "10.0.0.2")
    clock.now += 12.1
    assert [is_let_try(login, "10.0.0.1") for _ in range(2)] == [True, False]
    # Whoever has a network of IPv6 has one address.
    assert sum(is_let_try(login, f"2001:db8::{number:x}") for number in range(100)) == TRIES
    assert is_let_try(login, "2001:db8:0:1::1")
    # Whoever has many addresses does not get far either.
    assert sum(is_let_try(login, f"address {number}") for number in range(5_000)) < 100


def test_failed_attempts_do_not_lock_out_a_known_browser() -> None:
    login = Login(PASSWORD, Hours())
    # Having logged in often is no reason either.
    tokens = [login.begin(PASSWORD, HERE) for _ in range(2 * TRIES)]
    assert None not in tokens
    mine = str(tokens[-1])
    login.end([mine])
    assert sum(is_let_try(login, f"address {number}") for number in range(1_000)) == TRIES_OF_ALL
    assert not is_let_try(login, HERE)
    with pytest.raises(TooManyTries):
        login.begin(PASSWORD, HERE)
    assert login.begin(PASSWORD, HERE, ["x" * TOKEN_SIGNS, mine]) is not None
    # A browser that was let in once may try as often as anybody.
    assert [is_let_try(login, HERE, [mine]) for _ in range(TRIES + 1)] == [True] * TRIES + [False]


TOKEN = "t" * TOKEN_SIGNS


@pytest.mark.parametrize(
    ("host", "cookies", "accepted"),
    [
        ("localhost:8080", [f"millpond-session-8080={TOKEN}"], True),
        ("[::1]:8080", [f"millpond-session-8080={TOKEN}"], True),
        ("queue.example", [f"millpond-session={TOKEN}"], True),
        ("[::1]", [f"millpond-session={TOKEN}"], True),
        # Of another console on the same host.
        ("localhost:8080", [f"millpond-session-8081={TOKEN}; millpond-session={TOKEN}"], False),
        # Beside what other programs of the host have left there, in whatever form.
        ("localhost:8080", [f'a={{"b": [1, 2]}}; "; =; ;;x; ü=ü; millpond-session-8080={TOKEN};'], True),
        ("localhost:8080", ["a=b", f"c=d; millpond-session-8080={TOKEN}"], True),
        ("localhost:8080", [f"millpond-session-8080=planted; millpond-session-8080={TOKEN}"], True),
        ("localhost:8080", ["millpond-session-8080=" + "t" * 20_000], False),
        ("localhost:8080", [], False),
    ],
)
def test_our_cookie_is_found_among_all(host: str, cookies: list[str], accepted: bool) -> None:
    headers = Headers(raw=[(b"host", host.encode()), *((b"cookie", each.encode("latin-1")) for each in cookies)])
    assert tokens_of(headers) == ([TOKEN] if accepted else [])


def test_cookies_are_read_in_the_time_that_it_takes_to_read_them() -> None:
    """With http.cookies a quoted value of backslashes takes four times as long when it is twice as long."""
    for hostile in ('millpond-session-1="' + "\\" * 100_000 + '"', "; " * 50_000, "a=" * 50_000):
        headers = Headers(raw=[(b"host", b"localhost:1"), (b"cookie", hostile.encode())])
        assert tokens_of(headers) == []
        assert least_seconds(partial(tokens_of, headers)) < 0.5


@pytest.mark.parametrize(
    ("text", "fits"), [("eight888", True), ("short", False), ("", False), ("\n" + "x" * 20, False)]
)
def test_the_password_is_the_first_line_of_a_file(tmp_path: Path, text: str, fits: bool) -> None:
    (tmp_path / "secret").write_text(f"{text}\nsecond line\n")
    if fits:
        assert read_password(tmp_path / "secret") == text
    else:
        with pytest.raises(PasswordError, match="first line"):
            read_password(tmp_path / "secret")
    with pytest.raises(PasswordError, match="No such file"):
        read_password(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("host", "alone", "in_the_open"),
    [
        ("localhost:8080", True, True),
        ("127.0.0.1", True, True),
        ("127.0.0.2:8080", True, True),
        ("127.evil.example", False, False),
        ("[::1]:8080", True, True),
        ("10.1.2.3:8080", False, True),
        ("[2001:db8::7]:8080", False, True),
        ("queue.example:8080", True, True),
        ("QUEUE.example", True, True),
        ("evil.example:8080", False, False),
        ("queue.example.evil.example", False, False),
        ("0.0.0.0:8080", False, False),
        ("", False, False),
    ],
)
def test_names_by_which_it_answers(host: str, alone: bool, in_the_open: bool) -> None:
    names = frozenset({"queue.example"})
    assert Rules(names=names).takes_host(host) is alone
    assert Rules(names=names, is_open=True).takes_host(host) is in_the_open


@pytest.fixture(scope="module")
def guarded(pond: Pond, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    secret = tmp_path_factory.mktemp("secret") / "file"
    secret.write_text(f"{PASSWORD}\n")
    running = Console(pond.bootstrap, "--password-file", str(secret), "--read-only", "--listen", "0.0.0.0:0")
    running.address = running.address.replace("0.0.0.0", "127.0.0.1")
    yield running
    running.close()


def log_in(console: Console, password: str = PASSWORD) -> Answer:
    return console.change("POST", "/api/login", {"password": password})


def test_without_a_login_nothing_is_readable_or_changeable(guarded: Console) -> None:
    for path in ("/api/about", "/api/topics", "/api/live/overview", "/api/jobs"):
        assert guarded.get(path).status == 401
    assert guarded.change("POST", "/api/topics", {"name": "forged"}).status == 401
    # The pages themselves say nothing about the cluster; they ask for the password.
    assert guarded.get("/topics").status == 200
    assert guarded.get("/static/js/main.js").status == 200
    port = guarded.address.rpartition(":")[2]
    assert guarded.get("/api/topics", Cookie=f"millpond-session-{port}={TOKEN}").status == 401


def test_the_cookie_opens_and_cannot_be_read_or_sent_from_elsewhere(guarded: Console) -> None:
    response = log_in(guarded)
    assert response.status == 200
    cookie = response.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {each.strip().lower() for each in cookie.split(";")}
    sent = cookie.partition(";")[0]
    port = guarded.address.rpartition(":")[2]
    assert sent.startswith(f"millpond-session-{port}=")
    assert guarded.get("/api/about", Cookie=sent).body["has_login"]
    assert guarded.get("/api/about", Cookie=sent).body["refused"]["login"] > 0
    # A login is no leave to change what is read-only, nor for pages of others.
    json_headers = {"Content-Type": "application/json", "X-Millpond-Console": "1", "Cookie": sent}
    assert guarded.ask("POST", "/api/topics", {"name": "no"}, json_headers).status == 403
    assert guarded.get("/api/about", Cookie=sent, Origin="http://evil.example").status == 403
    assert guarded.get("/api/about", Cookie=sent, Host="evil.example").status == 403
    # What is looked at live ends with the session, and nobody is told anything more.
    view = HTTPConnection(guarded.address, timeout=30)
    view.request("GET", "/api/live/overview", headers={"Cookie": sent})
    shown = view.getresponse()
    assert shown.readline() == b"event: look\n"
    rest: list[bytes] = []
    reader = threading.Thread(target=lambda: rest.append(shown.read()))
    reader.start()
    assert guarded.ask("POST", "/api/logout", {}, json_headers).status == 200
    reader.join(20)
    assert rest, "the live view has ended"
    view.close()
    assert guarded.get("/api/about", Cookie=sent).status == 401


def test_a_live_view_ends_when_the_time_of_its_session_is_up() -> None:
    clock = Hours()
    login = Login(PASSWORD, clock)
    token = login.begin(PASSWORD, HERE)
    assert token is not None
    got: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got.append(await receive())
        clock.now += SESSION_SECONDS - 0.05
        got.append(await receive())

    async def receive() -> Message:
        if not got:
            return {"type": "http.request"}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_: Message) -> None:
        raise AssertionError

    cookie = f"millpond-session-1={token}".encode()
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/api/live/overview",
        "raw_path": b"/api/live/overview",
        "query_string": b"",
        "headers": [(b"host", b"localhost:1"), (b"cookie", cookie)],
    }
    guard = Guard(app, Counter(), Rules(login=login))
    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 20))
    assert [each["type"] for each in got] == ["http.request", "http.disconnect"]


def test_a_login_needs_what_every_change_needs(guarded: Console) -> None:
    assert guarded.ask("POST", "/api/login", {"password": PASSWORD}).status == 403
    plain = {"X-Millpond-Console": "1", "Content-Type": "text/plain"}
    assert guarded.ask("POST", "/api/login", {"password": PASSWORD}, plain).status == 415
    assert log_in(guarded, "x" * 5_000).status == 400
    # Nobody needs much memory who has not logged in.
    assert "16,384 bytes" in log_in(guarded, "x" * 20_000).body["error"]
    assert guarded.change("POST", "/api/login", {"password": 7}).status == 400


def test_passwords_are_not_tried_for_ever(guarded: Console) -> None:
    remembered = log_in(guarded).headers["set-cookie"].partition(";")[0]
    statuses = [log_in(guarded, f"wrong {number}").status for number in range(TRIES + 2)]
    assert 429 in statuses
    assert set(statuses) <= {401, 429}
    # Not even with the right one, for a while; but for whoever has been here before.
    assert log_in(guarded).status == 429
    headers = {"Content-Type": "application/json", "X-Millpond-Console": "1", "Cookie": remembered}
    assert guarded.ask("POST", "/api/login", {"password": PASSWORD}, headers).status == 200


def test_an_open_address_needs_a_password() -> None:
    with pytest.raises(ValueError, match="--password-file"):
        open_listener("0.0.0.0:0")
    open_listener("127.0.0.1:0").close()
    refused = subprocess.run(
        [sys.executable, "-m", "millpond.console", "--listen", "0.0.0.0:0", "--password-file", "/nowhere"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("millpond: The console's password cannot be read: /nowhere: No such file")
