"""Alert rules, dashboard and docs/monitoring.md, held against what a running node says of itself."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from millpond.admin.groups import commit_offsets
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Pond
from millpond.testing.ports import HOST, free_port
from support.node import eventually
from support.patience import with_time

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/millpond.rules.yml"
PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/millpond.json"
PAGE = ROOT / "docs/monitoring.md"
OUR_NAME = re.compile(r"\b((?:millpond|process)_[a-z0-9_]+)\b")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """What a node with something in it says."""
    port = free_port()
    with (
        Pond(mode="process", settings={"metrics.listener": f"{HOST}:{port}"}) as pond,
        Cluster({"bootstrap.servers": pond.bootstrap}) as cluster,
    ):
        pond.create_topic("orders", 2)
        pond.create_topic("orders.dlq")
        pond.produce("orders", b"a", b"b", partition=0)
        commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 1})
        yield ask(port)


def ask(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def families(text: str) -> dict[str, str]:
    """Their kinds by their names."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def names_in(expression: str, metric_names: dict[str, str]) -> set[str]:
    """The families that an expression asks for."""
    matches = set()
    for name in OUR_NAME.findall(expression):
        base = SUFFIX.sub("", name)
        matches.add(base if metric_names.get(base) == "histogram" else name)
    return matches


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def test_the_rules_use_only_existing_metrics(page: str) -> None:
    metric_names = families(page)
    for rule in alerts():
        if rule["alert"] != "MillpondNodeDown":
            names = names_in(rule["expr"], metric_names)
            assert names, rule["alert"]
            assert names <= metric_names.keys(), rule["alert"]


def test_the_dashboard_uses_only_existing_metrics(page: str) -> None:
    metric_names = families(page)
    for panel in panels():
        for target in panel["targets"]:
            names = names_in(target["expr"], metric_names)
            assert names, panel["title"]
            assert names <= metric_names.keys(), panel["title"]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"][1:]:
        assert names_in(variable["definition"], metric_names) <= metric_names.keys()


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert len({each["id"] for each in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for each in every:
        at = each["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, each["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_labels_of_the_expressions_are_those_of_the_samples(page: str) -> None:
    """A sum by a label that nothing has would be one nameless line."""
    labels: dict[str, set[str]] = {}
    for name, listed in re.findall(r"^(\w+)\{(.*)\} \S+$", page, re.MULTILINE):
        labels.setdefault(SUFFIX.sub("", name), set()).update(re.findall(r'(\w+)="', listed))
    always = {"instance", "le"}
    expressions = [rule["expr"] for rule in alerts()]
    expressions += [each["expr"] for panel in panels() for each in panel["targets"]]
    checked = 0
    for expression in expressions:
        for listed, inner in re.findall(r"by \(([^)]*)\) \((.*)", expression):
            # The first name behind it is what is summed.
            name = SUFFIX.sub("", OUR_NAME.findall(inner)[0])
            if name in labels:
                checked += 1
                assert {each.strip() for each in listed.split(",")} <= labels[name] | always, expression
    assert checked > 10


def test_the_page_names_all_metrics_and_all_alerts(page: str) -> None:
    text = PAGE.read_text()
    listed = set(re.findall(r"`((?:millpond|process)_\w+)`", text))
    assert families(page).keys() - listed == set(), "not on the page"
    assert listed - families(page).keys() == set(), "not in the node"
    assert {rule["alert"] for rule in alerts()} == set(re.findall(r"`(Millpond\w+)`", text))


def test_every_alert_says_what_is_wrong() -> None:
    for rule in alerts():
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_lag_of_a_real_group_is_there(page: str) -> None:
    at = re.escape('{group="billing",topic="orders",partition="0"}')
    assert re.search(rf"^millpond_group_lag_records{at} 1$", page, re.MULTILINE)
    (seconds,) = re.findall(rf"^millpond_group_lag_seconds{at} (\S+)$", page, re.MULTILINE)
    assert 0 <= float(seconds) < 300


def promtool(*arguments: str, values: str = "") -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool: sh tools/system_packages.sh prometheus")
    done = subprocess.run([program, *arguments], input=values, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(PROMETHEUS))


def test_promtool_finds_nothing_wrong_with_the_metrics(page: str) -> None:
    assert promtool("check", "metrics", values=page) == ""


IDLE = 300


def test_a_node_tells_its_health_whatever_others_do() -> None:
    """Connections that ask for nothing, and scrapers that do not wait for their page: neither is in the way."""
    port = free_port()
    with ExitStack() as open_now, Pond(mode="process", settings={"metrics.listener": f"{HOST}:{port}"}) as pond:
        pond.create_topic("orders", 50)
        for number in range(IDLE):
            connection = open_now.enter_context(socket.create_connection((HOST, port), 30))
            if number % 2:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        pond.produce("orders", b"a")
        for _ in range(3):
            assert ask(port, "/healthz") == "ok\n"
            assert ask(port, "/readyz") == "ready\n"

        def answers() -> bool:
            try:
                return "millpond_node_ready 1" in ask(port)
            except urllib.error.HTTPError:
                # So many scrapes at once are refused, until theirs are answered.
                return False

        assert eventually(answers)


@with_time
def test_a_slow_reader_gets_all_of_a_large_page() -> None:
    """For longer than a link that is being closed would wait."""
    port = free_port()
    with (
        Pond(mode="process", settings={"metrics.listener": f"{HOST}:{port}"}) as pond,
        socket.socket() as reader,
    ):
        pond.create_topic("wide", 1_000)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(30)
        reader.connect((HOST, port))
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began = time.monotonic()
        received = bytearray()
        while data := reader.recv(4096):
            received += data
            # As slowly as if all of it took a quarter of a minute.
            time.sleep(max(0.0, began + 15 * len(received) / 900_000 - time.monotonic()))
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        (length,) = re.findall(rb"Content-Length: (\d+)", head)
        assert len(body) == int(length)
        assert time.monotonic() - began > 10
