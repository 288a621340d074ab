"""The pages in a real browser: each without an error or another host; with the keyboard alone; on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millpond.client import dead_letters
from millpond.testing import Pond
from support.console import Console

PAGES = {
    "/": "Overview",
    "/topics": "Topics",
    "/topics/orders": "orders",
    "/topics/orders/records": "orders",
    "/topics/orders/settings": "orders",
    "/groups": "Groups",
    "/groups/billing": "billing",
    "/letters": "Dead letters",
    "/letters/orders.dlq": "orders.dlq",
    "/transactions": "Transactions",
    "/cluster": "Cluster",
}
PHONE = {"width": 390, "height": 844}
SECONDS_MAX = 20_000


@pytest.fixture(scope="module", autouse=True)
def something_to_see(pond: Pond) -> None:
    from confluent_kafka import TopicPartition

    pond.consumer("billing").commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    pond.create_topic("orders.dlq")
    cause = {
        dead_letters.TOPIC: b"orders",
        dead_letters.PARTITION: b"0",
        dead_letters.OFFSET: b"1",
        dead_letters.TIMESTAMP: b"0",
        dead_letters.ATTEMPTS: b"3",
        dead_letters.ERROR_TYPE: b"ValueError",
        dead_letters.ERROR_MESSAGE: b"<b>no</b>",
        dead_letters.GROUP: b"billing",
        dead_letters.TIME: b"0",
    }
    pond.produce("orders.dlq", ("customer-1", '{"order": 1}'), headers=cause)


class Tab:
    """A page of the console, and all that went wrong in it."""

    def __init__(self, browser: Any, console: Console, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(SECONDS_MAX)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda asked: self._check(asked.url, console.url))
        self._url = console.url

    def _check(self, url: str, ours: str) -> None:
        if not url.startswith(ours):
            self.faults.append(f"another host: {url}")

    def open(self, path: str) -> Any:
        self.page.goto(self._url + path)
        return self.page


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


READY = "main .card, main table, main .empty"


def unnamed(page: Any) -> list[str]:
    """Things to press or fill in that have no name for those who do not see them, by the browser's own reckoning."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input, select, textarea')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.textContent.trim() || each.ariaLabel || each.labels?.length || each.title))
            .map((each) => each.outerHTML)"""
    )
    return found


def test_every_page_has_its_title_and_its_address(tab: Tab) -> None:
    for path, title in PAGES.items():
        page = tab.open(path)
        page.locator("h1", has_text=title).first.wait_for()
        page.locator(READY).first.wait_for()
        assert page.title().endswith("Millpond")
        assert page.locator(".fault").count() == 0, path
        assert page.locator("#nav a[aria-current=page]").count() == 1
        assert unnamed(page) == []


def test_no_page_is_wider_than_a_phone(phone: Tab) -> None:
    for path in PAGES:
        page = phone.open(path)
        page.locator(READY).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


def test_html_in_a_record_is_text(tab: Tab) -> None:
    page = tab.open("/topics/orders/records?search=onerror")
    row = page.locator("td.value", has_text="<img src=x onerror=")
    row.wait_for()
    page.locator("button.open").first.click()
    page.locator("pre.data", has_text="<script>").wait_for()
    assert page.locator("main img, main script").count() == 0
    assert "run" not in page.title()
    page = tab.open("/letters/orders.dlq")
    page.locator("td", has_text="<b>no</b>").wait_for()


def test_a_topic_is_made_with_the_keyboard_alone(tab: Tab) -> None:
    page = tab.open("/topics")
    page.locator("table").wait_for()
    keys = page.keyboard
    for _ in range(20):
        keys.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Create topic":
            break
    keys.press("Enter")
    page.locator("dialog[open]").wait_for()
    keys.type("by-keyboard")
    keys.press("Tab")
    keys.type("2")
    keys.press("Enter")
    page.locator("h1", has_text="by-keyboard").wait_for()
    page.locator(".logrow").nth(1).wait_for()
    assert page.url.endswith("/topics/by-keyboard")


def test_a_record_is_produced_and_seen_live(tab: Tab) -> None:
    page = tab.open("/topics/orders/records?live=1")
    page.get_by_text("Waiting for what comes").wait_for()
    page.get_by_role("button", name="Produce one").click()
    page.get_by_label("Key", exact=True).fill("live-one")
    page.get_by_label("Value", exact=True).fill('{"live": true}')
    page.get_by_role("button", name="Produce", exact=True).click()
    page.locator("td.key", has_text="live-one").first.wait_for()


def test_offsets_are_reset_after_a_preview(tab: Tab) -> None:
    page = tab.open("/groups/billing")
    page.get_by_text("orders-0").first.wait_for()
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset 3 partitions").click()
    page.locator("dialog").wait_for(state="detached")
    page.locator(".note", has_text="goes on from there").wait_for()


def test_a_letter_is_redriven_after_a_dry_run(tab: Tab) -> None:
    page = tab.open("/letters/orders.dlq")
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("1 letter → orders").wait_for()
    page.get_by_role("button", name="Redrive 1 letter").click()
    page.locator(".state", has_text="redriven").wait_for()


def test_a_lost_connection_is_said_and_comes_back(browser: Any, pond: Pond) -> None:
    console = Console(pond.bootstrap)
    tab = Tab(browser, console)
    page = tab.open("/cluster")
    page.locator("table").wait_for()
    port = console.address.rpartition(":")[2]
    console.close()
    page.locator("#lost", has_text="lost").wait_for()
    again = Console(pond.bootstrap, "--listen", f"127.0.0.1:{port}")
    try:
        page.locator("#lost").wait_for(state="hidden")
    finally:
        tab.context.close()
        again.close()
