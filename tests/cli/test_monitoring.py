"""`millpond up --metrics` and `--journal`: real nodes that are asked as Prometheus would ask them."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def test_a_node_answers_monitoring_where_it_says(start_node: Callable[..., Any]) -> None:
    node = start_node("--metrics", "127.0.0.1:0", "--no-console")
    address = node.panel["metrics"]
    status, page = get(address)
    assert status == 200
    assert "\nprocess_resident_memory_bytes " in page
    assert "\nmillpond_loop_delay_seconds_count " in page
    base = address.removesuffix("/metrics")
    assert get(f"{base}/healthz") == (200, "ok\n")
    assert get(f"{base}/readyz") == (200, "ready\n")
    assert get(f"{base}/else")[0] == 404
    assert node.stop() == 0


def test_a_taken_port_is_no_reason_not_to_start(start_node: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start_node("--metrics", str(port), "--no-console")
        assert node.panel["metrics"].startswith(f"none: 127.0.0.1:{port}: ")
        assert node.panel["metrics"].endswith("see --metrics")
        node.process.terminate()
        assert "cannot serve metrics" in node.process.communicate(timeout=60)[1].decode()


def test_without_metrics_there_is_no_word_of_them(start_node: Callable[..., Any]) -> None:
    assert "metrics" not in start_node("--metrics", "off", "--no-console").panel


def test_an_address_that_cannot_be_is_refused(lonely: Any) -> None:
    lonely.fails("up", "--metrics", "nowhere:port", code=2, error="--metrics nowhere:port")


@pytest.mark.parametrize("cores", [(), ("--cores", "2")])
def test_the_journal_as_json(start_node: Callable[..., Any], cores: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start_node("--metrics", str(port), "--no-console", "--journal", "json", *cores)
        node.process.terminate()
        lines = [json.loads(line) for line in node.process.communicate(timeout=60)[1].decode().splitlines()]
    # Another core's port may be taken, too, by whoever else runs here.
    result = next(each for each in lines if each.get("address") == f"127.0.0.1:{port}")
    assert result["event"].startswith("cannot serve metrics")
    assert result.get("core") == (1 if cores else None)
    assert all(each["time"].endswith("Z") for each in lines)
