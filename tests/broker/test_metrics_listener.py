"""Who may scrape a node and what is served, over a link that records what is done to it."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from millpond.broker.metrics.listener import PAGES_MAX, READ_MS, SCRAPES_MAX, VISITS_MAX, MetricsListener
from millpond.broker.metrics.page import FRESH_MS
from millpond.broker.metrics.visit import REQUEST_BYTES_MAX, REQUEST_MS_MAX, STALL_MS

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Web:
    """A listener of a broker in the simulated world, and its clients."""

    def __init__(self, server: Any, make_link: Any, host: str = "127.0.0.1") -> None:
        self.server = server
        self.make_link = make_link
        self.listener = server.broker.contexts.bind(MetricsListener)()
        self._host = host
        assert self.listener.open(self, host, 9692) == (host, 9692)

    # The network.

    def listen(self, host: str, port: int, accept: Any) -> Any:
        self.accept = accept
        self.host, self.port = host, port
        return self

    def close(self) -> None:
        """Stop accepting."""

    # Called by tests.

    def visit(self) -> Any:
        link = self.make_link()
        link.handler = self.accept(link)
        return link

    def ask(self, request: str) -> tuple[int, dict[str, str], str]:
        link = self.visit()
        link.say(request.encode("latin-1"))
        assert self.server.sim.run_until(lambda: "close" in link.events, within_ms=10_000)
        link.end()
        return answer(link)

    def begin_reading(self) -> Any:
        """A client that has requested /metrics, whose response is ready, and that has read none of it yet."""
        link = self.visit()
        link.stuck = True
        link.say(SCRAPE)
        assert self.server.sim.run_until(lambda: link.sends > 0, within_ms=10_000)
        return link

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        lines = {"host": "127.0.0.1:9692", **headers}
        listed = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return self.ask(f"GET {path} HTTP/1.1\r\n{listed}\r\n")


def raw_answer(link: Any) -> tuple[int, dict[str, str], bytes]:
    head, _, body = bytes(link.received).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


def answer(link: Any) -> tuple[int, dict[str, str], str]:
    status, headers, body = raw_answer(link)
    return status, headers, body.decode()


@pytest.fixture
def web(server: Any, make_link: Any) -> Web:
    return Web(server, make_link)


def test_the_three_pages(web: Web) -> None:
    status, headers, body = web.get("/metrics?whatever=1")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["content-length"]) == len(body.encode())
    assert "\nmillpond_node_ready 1\n" in body
    assert web.get("/healthz")[::2] == (200, "ok\n")
    assert web.get("/readyz")[::2] == (200, "ready\n")
    status, _, body = web.get("/")
    assert status == 404
    assert "/metrics, /healthz, /readyz" in body


def test_a_node_that_is_not_ready_says_why(web: Web) -> None:
    web.server.broker.lifecycle.is_fenced = True
    status, _, body = web.get("/readyz")
    assert status == 503
    assert body.startswith("not ready: this node is fenced")
    web.server.broker.contexts.node.is_stopping = True
    assert "stopping" in web.get("/readyz")[2]
    assert web.get("/healthz")[0] == 200


def test_head_has_no_body(web: Web) -> None:
    status, headers, body = web.ask("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, headers["content-length"], body) == (200, "3", "")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9692",
        "127.0.0.1.evil.example:9692",
        "127.evil.example",
        "localhost.evil.example",
        "10.0.0.5",
        "[::2]:9692",
        "",
    ],
)
def test_a_foreign_name_is_refused_on_the_loopback(web: Web, host: str) -> None:
    assert web.get("/metrics", host=host)[0] == 403


@pytest.mark.parametrize("listens", ["127.0.0.1", "127.0.0.2", "::1"])
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:9692",
        "localhost.:9692",
        "127.0.0.1",
        "127.0.0.2:9692",
        "127.255.1.9",
        "[::1]:9692",
        "[::ffff:127.0.0.1]",
    ],
)
def test_all_of_the_loopback_is_the_loopback(server: Any, make_link: Any, listens: str, host: str) -> None:
    assert Web(server, make_link, listens).get("/healthz", host=host)[0] == 200


def test_elsewhere_any_name_is_fine(server: Any, make_link: Any) -> None:
    assert Web(server, make_link, "10.0.0.5").get("/healthz", host="millpond-0.pond.svc:9692")[0] == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}]
)
def test_a_page_of_another_origin_is_refused(web: Web, headers: dict[str, str]) -> None:
    assert web.get("/metrics", **headers)[0] == 403


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 405),
        ("DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET /metrics\r\n\r\n", 400),
        ("\x00\x00\x00\x10\r\n\r\n", 400),
        ("GET /" + "x" * REQUEST_BYTES_MAX, 431),
    ],
)
def test_what_is_no_question_is_refused(web: Web, request_text: str, status: int) -> None:
    assert web.ask(request_text)[0] == status


def test_a_request_in_pieces_is_read_whole(web: Web) -> None:
    link = web.visit()
    for sign in "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n":
        assert link.sends == 0
        link.say(sign.encode())
    assert answer(link)[0] == 200


def test_a_slow_client_is_disconnected(web: Web) -> None:
    link = web.visit()
    link.say(b"GET /metrics HTTP/1.1\r\n")
    web.server.sim.run_for(REQUEST_MS_MAX + 1)
    assert answer(link)[0] == 408
    assert link.events == ["close"]


def test_idle_connections_give_way_the_oldest_first(web: Web) -> None:
    idle = [web.visit() for _ in range(VISITS_MAX)]
    assert web.get("/healthz")[0] == web.get("/readyz")[0] == web.get("/metrics")[0] == 200
    assert [link.events for link in idle] == [["abort"]] + [[]] * (VISITS_MAX - 1)
    web.visit()
    web.visit()
    assert [link.events for link in idle[:3]] == [["abort"], ["abort"], []]


def test_health_is_told_whatever_scrapers_do(web: Web) -> None:
    """The maximum number of clients wait for a page or do not read theirs, and none of them ever disconnects."""
    readers = [web.begin_reading() for _ in range(SCRAPES_MAX)]
    idle = [web.visit() for _ in range(2 * VISITS_MAX)]
    for _ in range(3):
        assert web.get("/healthz")[0] == 200
        assert web.get("/readyz")[0] == 200
    assert [link.events for link in readers] == [["pause"]] * SCRAPES_MAX, "a reader was cut off for those who idle"
    assert sum(link.events == [] for link in idle) <= VISITS_MAX - SCRAPES_MAX


def test_scrapes_beyond_the_limit_are_refused_until_one_ends(web: Web) -> None:
    readers = [web.begin_reading() for _ in range(SCRAPES_MAX)]
    status, _, body = web.get("/metrics")
    assert (status, "ask again" in body) == (503, True)
    readers[0].read_all()
    readers[0].end()
    assert web.get("/metrics")[0] == 200
    web.begin_reading()
    web.server.sim.run_for(READ_MS)
    assert web.get("/metrics")[0] == 200
    assert [link.events for link in readers[:3]] == [["pause", "close"], ["pause", "abort"], ["pause"]]


def test_a_slow_reader_is_waited_for(web: Web) -> None:
    link = web.begin_reading()
    for _ in range(10):
        web.server.sim.run_for(STALL_MS - 1)
        link.read(1)
    assert link.events == ["pause"]
    link.read_all()
    assert link.events == ["pause", "close"]
    status, headers, body = answer(link)
    assert (status, headers["content-length"]) == (200, str(len(body.encode())))


def test_who_takes_nothing_is_cut_off(web: Web) -> None:
    link = web.begin_reading()
    web.server.sim.run_for(STALL_MS + 1)
    assert link.events == ["pause", "abort"]


def test_only_some_old_pages_are_held_for_those_who_still_read_them(web: Web) -> None:
    readers = []
    for _ in range(PAGES_MAX + 1):
        readers.append((web.begin_reading(), web.begin_reading()))
        web.server.sim.run_for(FRESH_MS)
    events = [link.events for pair in readers for link in pair]
    assert events == [["pause", "abort"]] * 2 + [["pause"]] * (2 * PAGES_MAX)


def test_a_page_is_packed_for_those_who_can_unpack_it(web: Web) -> None:
    plain = web.get("/metrics")
    assert "content-encoding" not in plain[1]
    links = []
    for wish in ("gzip", "deflate, gzip;q=0.5", "gzip;q=0, identity", "identity"):
        link = web.visit()
        link.say(SCRAPE.replace(b"Host", f"Accept-Encoding: {wish}\r\nHost".encode()))
        assert web.server.sim.run_until(lambda link=link: "close" in link.events, within_ms=10_000)
        links.append(raw_answer(link))
    assert [headers.get("content-encoding") for _, headers, _ in links] == ["gzip", "gzip", None, None]
    assert all(int(headers["content-length"]) == len(body) for _, headers, body in links)
    # All requests fall within one second, so they get the same page.
    texts = {gzip.decompress(body) if headers.get("content-encoding") else body for _, headers, body in links}
    assert texts == {plain[2].encode()}
    assert len(links[0][2]) < len(links[2][2]) / 3


def test_someone_who_leaves_is_not_answered_and_others_are(web: Web) -> None:
    gone, stays = web.visit(), web.visit()
    for link in (gone, stays):
        link.say(SCRAPE)
    gone.end()
    assert web.server.sim.run_until(lambda: "close" in stays.events, within_ms=10_000)
    assert answer(stays)[0] == 200


def test_a_bug_in_a_page_does_not_end_the_node(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("a bug")
        yield

    monkeypatch.setattr("millpond.broker.metrics.page.collect_requests", broken)
    assert web.get("/metrics")[0] == 500
    assert any("please report this" in line for line in map(str, web.server.node.journal_lines))
    monkeypatch.undo()
    assert web.get("/metrics")[0] == 200


def test_it_can_be_closed_while_a_client_waits(web: Web) -> None:
    link = web.visit()
    web.listener.close()
    assert link.events == ["abort"]
