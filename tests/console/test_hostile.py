"""What somebody might send to do harm: markup, large values, very many live views."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from base64 import b64decode
from collections import Counter

import pytest

from millpond.console.connections import CONNECTIONS_MAX
from millpond.console.records import PREVIEW, WHOLE
from millpond.console.streams import STREAMS_MAX
from millpond.testing import Pond
from support.console import Console, until

LARGE = 10_000_000
VIEWS = 1_000


def test_a_value_of_ten_megabytes_is_cut_and_does_no_harm(console: Console, pond: Pond) -> None:
    from confluent_kafka import Producer

    topic = pond.create_topic("large", max_message_bytes=LARGE + 100_000)
    producer = Producer(pond.client_settings() | {"message.max.bytes": LARGE + 100_000})
    producer.produce(topic, b"<script>" * (LARGE // 8), b"k")
    producer.produce(topic, b"small", b"k")
    assert producer.flush(60) == 0
    began = time.monotonic()
    page = console.get(f"/api/topics/{topic}/records")
    assert [each["value"]["bytes"] for each in page.body["records"]] == [LARGE, 5]
    assert len(page.data) < 10 * PREVIEW.data_bytes
    whole = console.get(f"/api/topics/{topic}/records/0/0").body
    assert len(b64decode(whole["value"]["data"])) == WHOLE.data_bytes
    assert time.monotonic() - began < 20
    matches = list(console.events(f"/api/live/topics/{topic}/search?text=small", "found"))
    assert [each["offset"] for step in matches for each in step["records"]] == [1]
    # Nor does one who sends as much to the console itself.
    assert console.change("POST", f"/api/topics/{topic}/records", {"value": "x" * 3_000_000}).status == 413


def test_a_thousand_live_views_are_refused_and_the_console_goes_on(pond: Pond) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < VIEWS + 500:
        pytest.skip(f"this machine lets a process have {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, VIEWS + 500), hard))
    console = Console(pond.bootstrap)
    host, _, port = console.address.partition(":")
    views = []
    statuses: Counter[bytes] = Counter()
    try:
        for _ in range(VIEWS):
            view = socket.create_connection((host, int(port)), 30)
            view.sendall(b"GET /api/live/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
            views.append(view)
            statuses[view.recv(12)[9:12]] += 1
        assert statuses == {b"200": STREAMS_MAX, b"503": VIEWS - STREAMS_MAX}
        # Those that were refused hold no place: whoever comes now is served.
        about = console.get("/api/about").body
        assert about["streams"] == STREAMS_MAX
        assert about["streams_refused"] == VIEWS - STREAMS_MAX
        assert console.get("/api/topics").status == 200
        for view in views:
            view.close()
        until(lambda: console.get("/api/about").body["streams"] == 0)
    finally:
        for view in views:
            view.close()
        console.close()


BEGUN = {
    "nothing": b"",
    "half a head": b"GET /api/about HTTP/1.1\r\nHost: loc",
    "half a body": b"POST /api/login HTTP/1.1\r\nHost: localhost\r\nX-Millpond-Console: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    "a question that was answered": b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("message", BEGUN)
def test_connections_that_say_nothing_make_room_for_others(console: Console, message: str) -> None:
    host, _, port = console.address.partition(":")
    quiet = []
    try:
        for _ in range(CONNECTIONS_MAX + 20):
            quiet.append(socket.create_connection((host, int(port)), 30))
            quiet[-1].sendall(BEGUN[message])
        # Those that have a place already are not asked to leave it for nothing: it is the others that are closed.
        assert [console.get("/api/about").status for _ in range(20)] == [200] * 20
        with selectors.DefaultSelector() as selector:
            for each in quiet:
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            until(lambda: sum(_is_closed(key.fileobj) for key, _ in selector.select(0)) >= 20)
    finally:
        for each in quiet:
            each.close()


def _is_closed(connection: object) -> bool:
    assert isinstance(connection, socket.socket)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


BODY = 100


def test_a_hundred_questions_of_a_foreign_page_are_refused_and_counted(console: Console) -> None:
    def refused() -> int:
        return int(console.get("/api/about").body["refused"].get("origin", 0))

    before = refused()
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://{console.address}", "Sec-Fetch-Site": "same-site"},
    ]
    ours = {"Content-Type": "application/json", "X-Millpond-Console": "1"}
    statuses: Counter[int] = Counter()
    for number in range(BODY):
        method, path = (("POST", "/api/topics"), ("GET", "/api/topics"), ("GET", "/api/live/overview"))[number % 3]
        statuses[console.ask(method, path, {"name": "forged"}, ours | foreign[number % 4]).status] += 1
    assert statuses == {403: BODY}
    assert refused() == before + BODY
    assert "forged" not in console.get("/api/topics?internal=1").data.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/api/live/skew/orders?records=99999999",
        "/api/live/skew/orders?since_ms=x",
        "/api/plan?replication=1e999",
        "/api/plan?message_bytes=nan",
        "/api/plan?groups=" + "9" * 60,
        "/api/jobs?kind=" + "x" * 300,
        "/api/skew?page=0",
    ],
)
def test_numbers_that_make_no_sense_are_refused(console: Console, path: str) -> None:
    assert console.get(path).status == 400


@pytest.mark.parametrize(
    "body",
    [
        {"what": "everything"},
        {"what": "drain", "nodes": []},
        {"what": "drain", "nodes": ["1"]},
        {"what": "drain", "nodes": [True]},
        {"what": "move", "topic": "orders", "nodes": [-1]},
        {"what": "factor", "topic": "orders", "factor": 0},
        {"what": "balance", "rate": 0},
        {"what": "balance"},
    ],
)
def test_orders_that_make_no_sense_are_refused(console: Console, body: dict[str, object]) -> None:
    assert console.change("POST", "/api/cluster/moves", body).status == 400


@pytest.mark.parametrize(
    "body", [{"acks": "0"}, {"count": 10_000_000}, {"size": -1}, {"linger_ms": "5"}, {"topic": 5}, {"commit": "yes"}]
)
def test_traces_that_make_no_sense_are_refused(console: Console, body: dict[str, object]) -> None:
    assert console.change("POST", "/api/trace", body).status == 400
