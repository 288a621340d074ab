"""Who is let in where others can reach the console, and by which names it is called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.console.guard import Rules
from millpond.console.login import (
    SESSION_SECONDS,
    SESSIONS_MAX,
    TRIES,
    Login,
    PasswordError,
    read_password,
    token_of,
)
from millpond.node.loopback import open_listener
from millpond.testing import Pond
from support.console import Answer, Console

PASSWORD = "open sesame"


class Hours:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_known_until_it_ends() -> None:
    clock = Hours()
    login = Login(PASSWORD, clock)
    assert login.begin("open sesam") is None
    assert login.begin(PASSWORD + "\n") is None
    token, other = login.begin(PASSWORD), login.begin(PASSWORD)
    assert token is not None
    assert other is not None
    assert token != other
    assert login.knows(token)
    assert not login.knows(token[:-1])
    assert not login.knows("")
    login.end(token)
    assert not login.knows(token)
    clock.now += SESSION_SECONDS
    assert not login.knows(other)


def test_there_are_only_so_many_sessions() -> None:
    login = Login(PASSWORD, Hours())
    tokens = [login.begin(PASSWORD) or "" for _ in range(SESSIONS_MAX + 1)]
    assert [login.knows(each) for each in (tokens[0], tokens[1], tokens[-1])] == [False, True, True]


def test_tries_are_limited_by_address_and_in_all() -> None:
    clock = Hours()
    login = Login(PASSWORD, clock)
    assert [login.may_try("a") for _ in range(TRIES + 1)] == [True] * TRIES + [False]
    assert login.may_try("b")
    clock.now += 12.1
    assert [login.may_try("a") for _ in range(2)] == [True, False]
    # Whoever has many addresses does not get far either.
    assert sum(login.may_try(f"address {number}") for number in range(5_000)) < 100


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


def test_nothing_is_told_or_changed_without_a_login(guarded: Console) -> None:
    for path in ("/api/about", "/api/topics", "/api/live/overview", "/api/jobs"):
        assert guarded.get(path).status == 401
    assert guarded.change("POST", "/api/topics", {"name": "forged"}).status == 401
    # The pages themselves say nothing about the cluster; they ask for the password.
    assert guarded.get("/topics").status == 200
    assert guarded.get("/static/js/main.js").status == 200
    assert guarded.get("/api/topics", Cookie="millpond-session=x").status == 401


def test_the_cookie_opens_and_cannot_be_read_or_sent_from_elsewhere(guarded: Console) -> None:
    response = log_in(guarded)
    assert response.status == 200
    cookie = response.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {each.strip().lower() for each in cookie.split(";")}
    sent = cookie.partition(";")[0]
    assert token_of(sent)
    assert guarded.get("/api/about", Cookie=sent).body["has_login"]
    assert guarded.get("/api/about", Cookie=sent).body["refused"]["login"] > 0
    # A login is no leave to change what is read-only, nor for pages of others.
    json_headers = {"Content-Type": "application/json", "X-Millpond-Console": "1", "Cookie": sent}
    assert guarded.ask("POST", "/api/topics", {"name": "no"}, json_headers).status == 403
    assert guarded.get("/api/about", Cookie=sent, Origin="http://evil.example").status == 403
    assert guarded.get("/api/about", Cookie=sent, Host="evil.example").status == 403
    assert guarded.ask("POST", "/api/logout", {}, json_headers).status == 200
    assert guarded.get("/api/about", Cookie=sent).status == 401


def test_a_login_needs_what_every_change_needs(guarded: Console) -> None:
    assert guarded.ask("POST", "/api/login", {"password": PASSWORD}).status == 403
    plain = {"X-Millpond-Console": "1", "Content-Type": "text/plain"}
    assert guarded.ask("POST", "/api/login", {"password": PASSWORD}, plain).status == 415
    assert log_in(guarded, "x" * 5_000).status == 400
    assert guarded.change("POST", "/api/login", {"password": 7}).status == 400


def test_passwords_are_not_tried_for_ever(guarded: Console) -> None:
    statuses = [log_in(guarded, f"wrong {number}").status for number in range(TRIES + 2)]
    assert 429 in statuses
    assert set(statuses) <= {401, 429}
    # Not even with the right one, for a while.
    assert log_in(guarded).status == 429


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
