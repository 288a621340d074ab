"""Who may ask the console, and what everybody gets with the result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

import millpond.console
from millpond.console.streams import STREAMS_MAX
from millpond.testing import Pond
from support.console import Console, until

STATIC = Path(millpond.console.__file__).parent / "static"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:9", "localhost:9", "[::1]:9"])
def test_names_of_this_machine_are_answered(console: Console, host: str) -> None:
    assert console.get("/api/about", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "0.0.0.0:80"])
def test_other_names_are_refused(console: Console, host: str) -> None:
    """Somebody could let a name of theirs point to 127.0.0.1, and read what their page asks for."""
    before = console.get("/api/about").body["refused"].get("host", 0)
    refused = console.get("/api/about", Host=host)
    assert refused.status == 403
    assert "127.0.0.1" in refused.body["error"]
    assert console.get("/api/about").body["refused"]["host"] == before + 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://{address}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_origins_get_no_data(console: Console, headers: dict[str, str]) -> None:
    sent = {name: value.format(address=console.address) for name, value in headers.items()}
    for path in ("/api/about", "/api/topics", "/api/live/overview"):
        assert console.get(path, **sent).status == 403


def test_a_link_from_elsewhere_opens_a_page(console: Console) -> None:
    assert console.ask("GET", "/topics", headers={"Sec-Fetch-Site": "cross-site"}).status == 200


JSON = {"Content-Type": "application/json"}
OURS = {"X-Millpond-Console": "1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 403),
        (OURS, 415),
        (OURS | {"Content-Type": "text/plain"}, 415),
        (JSON | OURS | {"Origin": "http://evil.example"}, 403),
        (JSON | OURS | {"Content-Length": "99999999"}, 413),
    ],
)
def test_a_change_must_come_from_our_own_pages(console: Console, headers: dict[str, str], status: int) -> None:
    assert console.ask("POST", "/api/topics", {"name": "forged"}, headers).status == status
    assert "forged" not in console.get("/api/topics?internal=1").data.decode()


def test_other_methods_are_refused(console: Console) -> None:
    for method in ("OPTIONS", "PUT", "TRACE"):
        assert console.ask(method, "/api/topics").status == 405


@pytest.mark.parametrize(
    "path", ["/", "/topics/orders", "/nothing", "/api/about", "/api/nothing", "/static/style.css"]
)
def test_every_response_forbids_what_is_not_ours(console: Console, path: str) -> None:
    headers = console.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_no_path_leads_out_of_the_files(console: Console) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"):
        assert b"import" not in console.get(path).data
        assert console.get(path).status == 404


def test_the_pages_name_no_other_host_and_make_no_markup() -> None:
    texts = {path: path.read_text() for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html")}
    assert len(texts) > 8
    for path, text in texts.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
            path
        )
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), path
    shell = texts[STATIC / "index.html"]
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", shell)


@pytest.fixture(scope="module")
def read_only(pond: Pond) -> Iterator[Console]:
    running = Console(pond.bootstrap, "--read-only")
    yield running
    running.close()


def test_read_only_shows_everything_and_changes_nothing(read_only: Console) -> None:
    assert read_only.get("/api/about").body["is_read_only"]
    assert read_only.get("/api/topics").status == 200
    for method, path in (("POST", "/api/topics"), ("PATCH", "/api/topics/orders"), ("DELETE", "/api/topics/orders")):
        refused = read_only.change(method, path, {"name": "no", "confirm": "orders"})
        assert refused.status == 403
        assert "read-only" in refused.body["error"]


def test_live_views_have_a_limit_and_give_their_place_back(read_only: Console) -> None:
    views = []
    for _ in range(STREAMS_MAX):
        view = HTTPConnection(read_only.address, timeout=30)
        view.request("GET", "/api/live/overview")
        assert view.getresponse().status == 200
        views.append(view)
    assert read_only.get("/api/live/overview").status == 503
    for view in views:
        view.close()
    # The place is free once the server has seen the reader go.
    until(lambda: read_only.get("/api/about").body["streams"] == 0)
