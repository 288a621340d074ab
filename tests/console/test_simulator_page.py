"""The simulator's page in a real browser: a lesson, the keyboard, a message, a bad link, a phone."""

from __future__ import annotations

from millpond.sim.simulator.actions import CreateTopic, Produce
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.tape import encode, tape_of
from support.browser import PHONE, Tab, unnamed

SHORT = tape_of((CreateTopic(partitions=1), 300, Produce(count=3, value="tea "), 200))


def test_a_lesson_asks_and_then_plays_its_answer(tab: Tab) -> None:
    page = tab.open("/simulator?lesson=keys")
    page.get_by_text("it stops for a question").wait_for()
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


def test_it_fits_a_phone(phone: Tab) -> None:
    page = phone.open(f"/simulator?lesson=two-groups&tape={encode(LESSONS['two-groups'].tape)}")
    page.locator(".sim-group").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
