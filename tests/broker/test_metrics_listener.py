"""Who may ask a node how it is, and what is answered: over a link that tells what was done to it."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.broker.metrics.listener import REQUEST_BYTES_MAX, REQUEST_MS_MAX, VISITS_MAX, MetricsListener


class Web:
    """A listener of a broker in the simulated world, and whoever comes."""

    def __init__(self, desk: Any, make_link: Any, host: str = "127.0.0.1") -> None:
        self.desk = desk
        self.make_link = make_link
        self.listener = MetricsListener(desk.broker)
        self._host = host
        assert self.listener.open(self, host, 9692) == (host, 9692)

    # The network.

    def listen(self, host: str, port: int, accept: Any) -> Any:
        self.accept = accept
        self.host, self.port = host, port
        return self

    def close(self) -> None:
        """Nobody comes any more."""

    # What a test does.

    def visit(self) -> Any:
        link = self.make_link()
        link.handler = self.accept(link)
        return link

    def ask(self, request: str) -> tuple[int, dict[str, str], str]:
        link = self.visit()
        link.say(request.encode("latin-1"))
        assert self.desk.sim.run_until(lambda: "close" in link.events, within_ms=10_000)
        return answer(link)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        lines = {"host": "127.0.0.1:9692", **headers}
        listed = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return self.ask(f"GET {path} HTTP/1.1\r\n{listed}\r\n")


def answer(link: Any) -> tuple[int, dict[str, str], str]:
    head, _, body = bytes(link.received).decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


@pytest.fixture
def web(desk: Any, make_link: Any) -> Web:
    return Web(desk, make_link)


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
    web.desk.broker.lifecycle.is_fenced = True
    status, _, body = web.get("/readyz")
    assert status == 503
    assert body.startswith("not ready: this node is fenced")
    web.desk.broker.is_stopping = True
    assert "stopping" in web.get("/readyz")[2]
    assert web.get("/healthz")[0] == 200


def test_head_has_no_body(web: Web) -> None:
    status, headers, body = web.ask("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, headers["content-length"], body) == (200, "3", "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9692", "127.0.0.1.evil.example:9692", ""])
def test_a_foreign_name_is_refused_on_the_loopback(web: Web, host: str) -> None:
    assert web.get("/metrics", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9692", "127.0.0.1", "[::1]:9692"])
def test_names_of_the_loopback_are_fine(web: Web, host: str) -> None:
    assert web.get("/healthz", host=host)[0] == 200


def test_elsewhere_any_name_is_fine(desk: Any, make_link: Any) -> None:
    assert Web(desk, make_link, "10.0.0.5").get("/healthz", host="millpond-0.pond.svc:9692")[0] == 200


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


def test_whoever_is_slow_is_cut_off(web: Web) -> None:
    link = web.visit()
    link.say(b"GET /metrics HTTP/1.1\r\n")
    web.desk.sim.run_for(REQUEST_MS_MAX + 1)
    assert answer(link)[0] == 408
    assert link.events == ["close"]


def test_only_so_many_may_come_at_once(web: Web) -> None:
    links = [web.visit() for _ in range(VISITS_MAX)]
    assert web.visit().handler is None
    links[0].end()
    assert web.visit().handler is not None


def test_someone_who_leaves_is_not_answered_and_others_are(web: Web) -> None:
    gone, stays = web.visit(), web.visit()
    for link in (gone, stays):
        link.say(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    gone.end()
    assert web.desk.sim.run_until(lambda: "close" in stays.events, within_ms=10_000)
    assert answer(stays)[0] == 200


def test_a_bug_in_a_page_does_not_end_the_node(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("a bug")
        yield

    monkeypatch.setattr("millpond.broker.metrics.page.collect_requests", broken)
    assert web.get("/metrics")[0] == 500
    assert any("please report this" in line for line in map(str, web.desk.node.journal_lines))
    monkeypatch.undo()
    assert web.get("/metrics")[0] == 200


def test_it_can_be_closed_while_somebody_waits(web: Web) -> None:
    link = web.visit()
    web.listener.close()
    assert link.events == ["abort"]
