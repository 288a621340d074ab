"""A real node with something in it, the console as a process of its own, and a browser where there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.testing import Pond
from support.browser import PHONE, Tab
from support.console import Console

CHROMIUM = shutil.which("chromium")
HTML = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def pond() -> Iterator[Pond]:
    with Pond(settings={"group.initial.rebalance.delay.ms": "0"}) as started:
        started.create_topic("orders", 3)
        orders = [(f"customer-{number % 5}", json.dumps({"order": number})) for number in range(30)]
        started.produce("orders", *orders, ("html", HTML), headers={"trace": b"abc"})
        yield started


@pytest.fixture(scope="module")
def console(pond: Pond) -> Iterator[Console]:
    running = Console(pond.bootstrap)
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: sh tools/system_packages.sh chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as run:
        started = run.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, console: Console) -> Iterator[Tab]:
    opened = Tab(browser, console)
    yield opened
    opened.context.close()
    assert opened.faults == []


@pytest.fixture
def phone(browser: Any, console: Console) -> Iterator[Tab]:
    opened = Tab(browser, console, viewport=PHONE, color_scheme="dark")
    yield opened
    opened.context.close()
    assert opened.faults == []
