"""The simulator's page in a real browser: a lesson, the keyboard, a message, a bad link, a campaign, a phone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millpond.sim.simulator.actions import CreateTopic, Produce
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import encode, recording_of
from millpond.testing import Pond
from support.browser import PHONE, Tab, unnamed
from support.console import Console
from support.patience import with_time

CAMPAIGNS = Path(__file__).parents[1] / "campaigns"
SHORT = recording_of((CreateTopic(partitions=1), 300, Produce(count=3, value="tea "), 200))


def test_a_lesson_asks_and_then_plays_its_answer(tab: Tab) -> None:
    page = tab.open("/simulator?lesson=keys")
    page.get_by_text("it stops at a question").wait_for()
    page.locator(".sim-node").nth(2).wait_for()
    page.get_by_label("Speed").select_option("4000")
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Play the answer").wait_for()
    page.get_by_role("button", name="Play the answer").click()
    page.get_by_text("The hash of the key chooses the partition").wait_for()
    page.get_by_text("21 records acknowledged").wait_for()
    assert page.locator(".sim-log.leader .cell").count() == 21
    assert unnamed(page) == []
    assert "tape=1." in page.url


@with_time
@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_plays_to_its_end(tab: Tab, name: str) -> None:
    page = tab.open(f"/simulator?lesson={name}")
    page.get_by_text("it stops at a question").wait_for()
    page.get_by_label("Speed").select_option("4000")
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Play the answer").click(timeout=60_000)
    page.get_by_text(LESSONS[name].answer[:40]).wait_for()
    page.get_by_role("button", name="Play", exact=True).wait_for(timeout=90_000)
    assert page.locator(".fault").all_text_contents() == []
    assert unnamed(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_something_is_done_and_taken_back_by_the_keyboard(tab: Tab) -> None:
    page = tab.open(f"/simulator?tape={encode(SHORT)}&at=500")
    page.get_by_text("3 records acknowledged").wait_for()
    page.get_by_text("Produce records", exact=True).focus()
    page.keyboard.press("Enter")
    page.locator("details[open] button[type=submit]").focus()
    page.keyboard.press("Enter")
    page.locator(".sim-story li.you", has_text="produce 1 to orders").wait_for()
    page.get_by_role("button", name="+1 s").click()
    page.get_by_text("4 records acknowledged").wait_for()
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    page.get_by_text("0 records acknowledged").wait_for()


def test_a_message_is_opened_from_the_list(tab: Tab) -> None:
    page = tab.open(f"/simulator?tape={encode(SHORT)}&at=300")
    page.get_by_role("button", name="Step", exact=True).click()
    page.locator(".sim-wire button").first.click()
    page.locator("dialog pre.data").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_a_bad_link_says_what_is_wrong(tab: Tab) -> None:
    page = tab.open("/simulator?tape=1.AAAA")
    page.locator(".fault", has_text="damaged").wait_for()
    tab.faults = [each for each in tab.faults if "400" not in each]


def test_a_campaign_seed_is_shown_and_a_lesson_after_it(tab: Tab) -> None:
    page = tab.open("/simulator?tape=campaign.records.3")
    page.get_by_text("Campaign seed campaign.records.3").wait_for()
    page.get_by_text("No violation was found.").wait_for()
    page.locator(".sim-story li").nth(10).wait_for()
    assert page.get_by_role("button", name="Do it").count() == 0
    assert unnamed(page) == []
    page.get_by_label("Lesson").select_option("keys")
    page.get_by_text("it stops at a question").wait_for()
    page.locator(".sim-node").nth(2).wait_for()
    page.get_by_role("button", name="+1 s").click()
    page.locator(".sim-story li.you", has_text="topic orders").wait_for()


BROKEN = """
from millpond.sim.machines.run import Run, Violation

def fail(self, *_):
    raise Violation("two leaders of one epoch")

Run.run_until_well = fail
"""
"""Read by every Python that finds it: as if the quorum had a bug, for the campaign and for the console alike."""


def test_a_seed_that_fails_opens_by_what_its_campaign_prints(
    browser: Any, pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: a campaign fails, somebody opens the link in its output, and sees the run and what was found."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["quorum", "--seeds", "1", "--start", "17", "--jobs", "1"]
    campaign = subprocess.run(
        [sys.executable, CAMPAIGNS / "simulate.py", *words], capture_output=True, text=True, timeout=200
    )
    assert campaign.returncode == 1, campaign.stdout + campaign.stderr
    assert "quorum seed 17 failed:\n  two leaders of one epoch\n" in campaign.stdout
    (path,) = re.findall(r"http://127\.0\.0\.1:8080(/simulator\?tape=\S+)", campaign.stdout)
    console = Console(pond.bootstrap)
    tab = Tab(browser, console)
    try:
        page = tab.open(path)
        page.get_by_text("Campaign seed campaign.quorum.17").wait_for()
        page.locator(".fault", has_text="two leaders of one epoch").wait_for()
        assert page.locator(".sim-story li").count() > 20
        page.locator(".sim-story li", has_text="--- ").first.wait_for()
    finally:
        tab.context.close()
        console.close()
    assert tab.faults == []


def test_it_fits_a_phone(phone: Tab) -> None:
    page = phone.open(f"/simulator?lesson=two-groups&tape={encode(LESSONS['two-groups'].tape)}")
    page.locator(".sim-group").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
