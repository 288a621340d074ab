"""The pages in a real browser: each without an error or another host; with the keyboard alone; on a phone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millpond.client import dead_letters
from millpond.console.records import ROWS
from millpond.testing import Pond
from support.browser import PHONE, READY, Tab, axe_source, barriers, unnamed
from support.console import Console, until

PAGES = {
    "/": "Overview",
    "/topics": "Topics",
    "/topics/orders": "orders",
    "/topics/orders/records": "orders",
    "/topics/orders/settings": "orders",
    "/groups": "Groups",
    "/groups/billing": "billing",
    "/queues": "Queues",
    "/letters": "Dead letters",
    "/letters/orders.dlq": "orders.dlq",
    "/transactions": "Transactions",
    "/cluster": "Cluster",
    "/pipelines": "Pipelines",
    "/hot": "Hot partitions",
    "/hot/orders": "orders",
    "/plan": "Plan",
    "/trace": "Trace",
    "/simulator": "Simulator",
}


@pytest.fixture(scope="module", autouse=True)
def something_to_see(pond: Pond) -> None:
    from confluent_kafka import TopicPartition

    pond.consumer("billing").commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    pond.create_topic("orders.dlq")
    pond.produce("orders.dlq", ("customer-1", '{"order": 1}'), headers=CAUSE)


CAUSE = {
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


def test_every_page_has_its_title_and_its_address_and_fits_a_phone(tab: Tab) -> None:
    wide = tab.page.viewport_size
    for path, title in PAGES.items():
        page = tab.open(path)
        page.locator("h1", has_text=title).first.wait_for()
        page.locator(READY).first.wait_for()
        assert page.title().endswith("Millpond")
        assert page.locator(".fault").count() == 0, path
        assert page.locator("#nav a[aria-current=page]").count() == 1
        assert unnamed(page) == []
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        page.set_viewport_size(wide)


def test_pages_have_no_accessibility_faults(browser: Any, console: Console, pytestconfig: pytest.Config) -> None:
    axe = axe_source(pytestconfig.cache.mkdir("axe"))  # type: ignore[union-attr]
    # Its own script is none of ours, so the policy that keeps out all others is off here.
    tab = Tab(browser, console, color_scheme="light", bypass_csp=True)
    elements = []
    for path in PAGES:
        page = tab.open(path)
        page.locator(READY).first.wait_for()
        elements += [f"{path}: {each}" for each in barriers(page, axe)]
        # In the dark a page has other colours and nothing else.
        page.emulate_media(color_scheme="dark")
        elements += [f"{path}, dark: {each}" for each in barriers(page, axe, "color-contrast")]
        page.emulate_media(color_scheme="light")
    tab.context.close()
    assert not elements, "\n".join(elements)


def test_a_page_that_is_opened_on_a_phone_fits_it(phone: Tab) -> None:
    """Charts take their width from the page when they are drawn."""
    for path in ("/", "/topics/orders", "/groups/billing"):
        page = phone.open(path)
        page.locator(READY).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    page = phone.open("/topics/orders/records")
    page.locator("button.open").first.click()
    # The last one of a row of buttons.
    command = page.get_by_role("button", name="Command").bounding_box()
    assert command["x"] + command["width"] <= PHONE["width"]


HOSTILE = (
    "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>",
    "<svg onload=document.title='run'>",
    "<iframe srcdoc=\"<script>parent.document.title='run'</script>\"></iframe>",
    "<a href=\"javascript:document.title='run'\">x</a>",
    "</td></tr></table><style>*{display:none}</style>",
    "{{constructor.constructor('document.title=1')()}}",
    "javascript:document.title='run'",
    "<math><mtext><form><mglyph><style></math><img src onerror=document.title='run'>",
)


def test_records_that_are_html_make_no_element_and_run_nothing(browser: Any, console: Console, pond: Pond) -> None:
    topic = pond.new_topic(1)
    for number in range(ROWS):
        text = HOSTILE[number % len(HOSTILE)]
        pond.produce(topic, (text, text), headers={text: text.encode()})
    tab = Tab(browser, console)
    page = tab.open(f"/topics/{topic}/records")
    page.locator("td.value").nth(ROWS - 1).wait_for()
    for number in range(len(HOSTILE)):
        page.locator("button.open").nth(number).click()
        page.locator("tr.detail").nth(number).locator("pre[aria-label=value]").wait_for()
    shown = page.locator("td.value").all_text_contents()
    assert Counter(shown) == Counter(HOSTILE[number % len(HOSTILE)] for number in range(ROWS))
    assert page.locator("tr.detail dt", has_text="<").count() == 6, "names of headers"
    made = "img, script, style, iframe, svg, math, form:not(.cardhead), [onerror], [onload], [href^=javascript]"
    assert page.locator(f"main :is({made})").count() == 0
    assert "run" not in page.title()
    # Whoever opens the address of the data itself sees text, too.
    raw = console.get(f"/api/topics/{topic}/records")
    assert (raw.headers["content-type"], raw.headers["x-content-type-options"]) == ("application/json", "nosniff")
    tab.context.close()
    assert tab.faults == [], "nor was anything tried that the policy had to refuse"


def test_a_page_that_does_not_come_says_so(browser: Any, console: Console) -> None:
    tab = Tab(browser, console)

    def refuse(pattern: str) -> None:
        tab.page.route(pattern, lambda route: route.abort())

    # Not even its first script: what is said then needs none.
    refuse("**/dom.js")
    page = tab.open("/topics")
    assert not page.locator(".late").is_visible()
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    assert page.get_by_text("This page cannot be loaded.").is_visible()
    page.unroute_all()
    page.get_by_role("link", name="Reload").click()
    page.locator("td", has_text="orders").first.wait_for()
    # A part of it.
    refuse("**/pages/groups.js")
    page.get_by_role("link", name="Groups", exact=True).click()
    page.get_by_text("A part of this page could not be loaded.").wait_for()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    page.locator("td", has_text="billing").first.wait_for()
    # Its first question.
    refuse("**/api/*")
    page = tab.open("/topics")
    page.locator("main .fault", has_text="Is it still running?").wait_for()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    page.locator("td", has_text="orders").first.wait_for()
    # Its live view, and why.
    full = '{"error": "64 live views are open: close one first."}'
    page.route("**/api/live/*", lambda route: route.fulfill(status=503, content_type="application/json", body=full))
    page = tab.open("/cluster")
    page.locator("#lost", has_text="64 live views are open").wait_for()
    page.unroute_all()
    page.get_by_text("all there").wait_for()
    assert not page.locator("#lost").is_visible()
    # An address that is none.
    page = tab.open("/topics/%E0")
    page.get_by_text("There is no such page.").wait_for()
    page = tab.open("/topics/orders/constructor")
    page.get_by_text("There is no such view.").wait_for()
    tab.context.close()


def test_no_button_of_the_bar_is_out_of_reach_however_wide_the_window_is(tab: Tab) -> None:
    page = tab.open("/plan")
    for width in (800, 1024, 1200, 1366, 1440):
        page.set_viewport_size({"width": width, "height": 700})
        button = page.get_by_role("button", name="Theme: auto. Change").bounding_box()
        assert button["x"] + button["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("path", ["/cluster", "/hot", "/plan"])
def test_a_page_fits_a_phone(tab: Tab, path: str) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 800})
    page = tab.open(path)
    page.locator("main h1").wait_for()
    page.locator("main .slider" if path == "/plan" else "main td").first.wait_for()
    right = "Math.max(...[...document.querySelectorAll('main *')].map((each) => each.getBoundingClientRect().right))"
    assert page.evaluate(right) <= 390


def test_a_page_comes_in_a_browser_that_keeps_nothing(browser: Any, console: Console) -> None:
    tab = Tab(browser, console)
    tab.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    page = tab.open("/topics/orders/records")
    page.locator("button.open").first.click()
    page.locator("pre.data").first.wait_for()
    page.get_by_role("button", name="Theme: auto. Change").click()
    page.get_by_role("button", name="Theme: light. Change").wait_for()
    tab.context.close()
    assert tab.faults == []


def test_a_background_page_loads_once_it_is_visible(browser: Any, console: Console) -> None:
    tab = Tab(browser, console)
    tab.page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => !window.isLookedAt })")
    page = tab.open("/hot/orders")
    page.get_by_text("Reading …").wait_for()
    page.evaluate("window.isLookedAt = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_role("heading", name="What would help").wait_for()
    tab.context.close()
    assert tab.faults == []


def test_a_group_shows_topics_whatever_they_are_called(tab: Tab, pond: Pond) -> None:
    topic = pond.create_topic("__proto__", 1)
    reader = pond.consumer("reads anything")
    reader.subscribe([topic])
    until(lambda: reader.poll(0.1) is None and reader.assignment())
    page = tab.open("/groups/reads%20anything")
    page.locator("td", has_text="__proto__: 0").wait_for()
    reader.close()


@pytest.mark.smoke
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


@pytest.mark.smoke
def test_a_record_is_produced_and_seen_live(tab: Tab) -> None:
    page = tab.open("/topics/orders/records?live=1")
    page.get_by_text("Waiting for new records").wait_for()
    page.get_by_role("button", name="Produce one").click()
    page.get_by_label("Key", exact=True).fill("live-one")
    page.get_by_label("Value", exact=True).fill('{"live": true}')
    page.get_by_role("button", name="Produce", exact=True).click()
    page.locator("td.key", has_text="live-one").first.wait_for()


def test_records_of_all_partitions_are_shown_page_by_page(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(2)
    # What is said of an empty one works as it stands, wherever the node listens.
    command = f"echo hello | millpond produce {topic} --bootstrap {pond.bootstrap}"
    tab.open(f"/topics/{topic}/records").get_by_text(command).wait_for()
    for partition in (0, 1):
        pond.produce(topic, *(f"{partition}-{number}" for number in range(ROWS)), partition=partition)
    page = tab.open(f"/topics/{topic}/records")
    rows = page.locator("tr.pick td:first-child")
    pages = []
    for button in ("Older", "Newer"):
        page.get_by_text(f"{ROWS} records, the newest first").wait_for()
        pages.append(rows.all_text_contents())
        page.get_by_role("button", name=button).click()
        # The page that comes has none of these.
        page.locator("tr.pick td:first-child", has_text=pages[-1][0]).wait_for(state="detached")
    page.get_by_text(f"{ROWS} records, the newest first").wait_for()
    pages.append(rows.all_text_contents())
    assert sorted(pages[0] + pages[1]) == sorted(f"{each}:{offset}" for each in (0, 1) for offset in range(ROWS))
    assert pages[2] == pages[0]
    # Also of one of them; and each page has an address.
    page = tab.open(f"/topics/{topic}/records?partition=1&before=1:7")
    page.get_by_text(f"Offsets 0 to 6 of 0 to {ROWS}").wait_for()
    assert rows.all_text_contents() == [f"1:{offset}" for offset in reversed(range(7))]
    page.get_by_role("button", name="Newer").click()
    page.get_by_text(f"Offsets 7 to {ROWS - 1} of").wait_for()
    page.get_by_role("button", name="Newest").click()
    page.get_by_text(f"Offsets 0 to {ROWS - 1} of").wait_for()
    assert page.url.endswith("/records?partition=1")


def test_offsets_are_reset_after_a_preview(browser: Any, console: Console, pond: Pond) -> None:
    from confluent_kafka import TopicPartition

    tab = Tab(browser, console)
    page = tab.open("/groups/billing")
    page.get_by_text("orders-0").first.wait_for()
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_label("Read from").select_option("end")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset 3 partitions").wait_for()
    # Somebody else is quicker: what was seen is not asked for again, but looked at anew.
    pond.consumer("billing").commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    page.get_by_role("button", name="Reset 3 partitions").click()
    page.locator("dialog .fault", has_text="changed since the preview").wait_for()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Reset 3 partitions").click()
    page.locator("dialog").wait_for(state="detached")
    page.locator(".note", has_text="continues from there").wait_for()
    tab.context.close()
    # A browser says in its console what was refused; nothing else went wrong.
    assert [each for each in tab.faults if "409" not in each] == []


@pytest.mark.parametrize(
    ("path", "opens", "action", "field"),
    [
        ("/letters/orders.dlq", "Purge", "Count them", "mode"),
        ("/letters/orders.dlq", "Redrive all", "Dry run", "to"),
        ("/groups/billing", "Reset offsets", "Preview", "to"),
    ],
)
def test_the_form_is_locked_while_a_result_is_pending(
    tab: Tab, path: str, opens: str, action: str, field: str
) -> None:
    """What a dry run has counted would be agreed to under another choice."""
    page = tab.open(path)
    held: list[Any] = []
    page.route("**/api/*/*/*", lambda each: held.append(each) if each.request.method == "POST" else each.fallback())
    page.get_by_role("button", name=opens).click()
    page.get_by_role("button", name=action).click()
    page.locator(f"dialog [name={field}]:disabled").wait_for()
    assert page.locator("dialog :is(input, select, textarea):enabled").count() == 0
    until(lambda: page.evaluate("0") == 0 and held)
    held[0].fallback()
    page.locator(f"dialog [name={field}]:enabled").wait_for()


AGAIN = """() => new Promise((done) => {
    const button = document.querySelector("dialog button[type=submit]");
    const first = button.textContent;
    const look = () => {
        if (button.textContent === first) return setTimeout(look, 1);
        setTimeout(() => { const isCalm = button.disabled; button.click(); done(isCalm); }, 50);
    };
    button.click();
    look();
})"""


@pytest.mark.parametrize(("opens", "then"), [("Purge", "Delete 1 letter"), ("Redrive all", "Redrive 1 letter")])
def test_a_double_click_does_not_confirm_unseen_changes(tab: Tab, pond: Pond, opens: str, then: str) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    pond.produce(letters, "1", headers=CAUSE | {dead_letters.TOPIC: topic.encode()})
    page = tab.open(f"/letters/{letters}")
    page.get_by_role("button", name=opens).click()
    if opens == "Purge":
        page.locator("dialog [name=mode]").select_option("all")
    assert page.evaluate(AGAIN) is True
    page.get_by_role("button", name=then).click()
    page.locator("dialog").wait_for(state="detached")


def test_a_letter_is_redriven_after_a_dry_run(tab: Tab) -> None:
    page = tab.open("/letters/orders.dlq")
    # Nothing moves under the mouse any more.
    page.get_by_text("Counting …").first.wait_for(state="detached")
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("1 letter → orders").wait_for()
    page.get_by_role("button", name="Redrive 1 letter").click()
    page.locator(".state", has_text="redriven").wait_for()


def test_a_letter_is_edited_beside_where_it_came_from(tab: Tab, pond: Pond) -> None:
    pond.produce("orders.dlq", ("customer-2", '{"order": "two"}'), headers=CAUSE)
    page = tab.open("/letters/orders.dlq")
    page.get_by_role("button", name="Letter 0:1").click()
    page.get_by_text("Key or value differ from the letter.").wait_for()
    page.get_by_role("button", name="Edit and redrive").click()
    page.get_by_label("Value", exact=True).fill('{"order": 2}')
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("1 letter → orders").wait_for()
    page.get_by_role("button", name="Redrive 1 letter").click()
    page.locator(".note", has_text="Redrove 1 letter").wait_for()
    page = tab.open("/topics/orders/records?partition=0")
    page.locator("td.value", has_text='{"order": 2}').first.wait_for()


def test_a_letter_is_read_by_the_schema_of_where_it_came_from(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    pond.produce(topic, ("k", b"\x06Ann"))
    pond.produce(
        letters, ("k", b"\x06Bob"), headers=CAUSE | {dead_letters.TOPIC: topic.encode(), dead_letters.OFFSET: b"0"}
    )
    page = tab.open(f"/letters/{letters}")
    page.get_by_role("button", name="Letter 0:0").click()
    page.get_by_text("Key or value differ from the letter.").wait_for()
    values = page.get_by_role("group", name="Format of the value")
    values.first.get_by_role("button", name="Avro").click()
    page.get_by_label("Schema", exact=True).fill(
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "string"}]}'
    )
    page.get_by_role("button", name="Use it").click()
    page.locator("pre.data", has_text='"x": "Bob"').wait_for()
    # Nobody has to give it a second time.
    values.last.get_by_role("button", name="Avro").click()
    page.locator("pre.data", has_text='"x": "Ann"').wait_for()


def test_picked_letters_of_a_recreated_topic_are_refused(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    headers = CAUSE | {dead_letters.TOPIC: topic.encode()}
    pond.produce(letters, ("seen", "v"), headers=headers)
    page = tab.open(f"/letters/{letters}")
    page.get_by_label("Pick letter 0:0").check()
    pond.admin.delete_topics([letters])[letters].result(10)
    pond.create_topic(letters)
    pond.produce(letters, ("never seen", "v"), headers=headers)
    page.get_by_role("button", name="Redrive 1 …").click()
    page.get_by_role("button", name="Dry run").click()
    page.locator("dialog .fault", has_text="recreated").wait_for()


def test_leaving_a_redrive_does_not_navigate_back(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    pond.produce(letters, "1", "2", headers=CAUSE | {dead_letters.TOPIC: topic.encode()})
    page = tab.open(f"/letters/{letters}")
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("spinbutton").fill("1")
    page.get_by_role("button", name="Dry run").click()
    page.get_by_role("button", name="Redrive 2 letters").click()
    page.get_by_text("of 2 sent").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("link", name="Groups", exact=True).click()
    page.locator("h1", has_text="Groups").wait_for()
    page.locator(".note", has_text="Redrove 2 letters").wait_for()
    page.get_by_role("link", name="billing").wait_for()
    assert page.locator("h1").text_content() == "Groups"


def test_unedited_parts_of_a_letter_stay_byte_for_byte(tab: Tab, pond: Pond) -> None:
    """Fields of a browser take away line breaks and change them; neither may come to be part of a record."""
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    headers = CAUSE | {dead_letters.TOPIC: topic.encode()}
    pond.produce(letters, (b"k\n1", b'\xef\xbb\xbf{"order": 1}\r\n{"order": 2}\r\n'), headers=headers)
    pond.produce(letters, (b"k2", b"one\r\ntwo\n"), headers=headers)
    # Where the letters came from. The second differs in its last byte.
    pond.produce(topic, (b"k1", b"x"), (b"k2", b"one\r\ntwo!"))

    def redrive(edited: str, **fields: str) -> Any:
        page = tab.open(f"/letters/{letters}")
        page.get_by_role("button", name=f"Letter {edited}").click()
        page.get_by_text("Key or value differ from the letter.").wait_for()
        page.get_by_role("button", name="Edit and redrive").click()
        shown = {name: page.get_by_label(name, exact=True).input_value() for name in ("Key", "Value")}
        page.get_by_role("button", name="Go on").click()
        page.get_by_text("Nothing was changed.").wait_for()
        for name, text in fields.items():
            page.get_by_label(name, exact=True).fill(text)
        page.get_by_role("button", name="Go on").click()
        page.get_by_role("button", name="Dry run").click()
        page.get_by_role("button", name="Redrive 1 letter").click()
        page.locator(".note", has_text="Redrove 1 letter").wait_for()
        return shown

    shown = redrive("0:0", Value='\ufeff{"order": 1}\n{"order": 3}\n')
    assert shown == {"Key": "6b0a31", "Value": '\ufeff{"order": 1}\n{"order": 2}\n'}
    shown = redrive("0:1", Key="k3")
    assert shown == {"Key": "k2", "Value": b"one\r\ntwo\n".hex()}
    *_, first, second = pond.consume(topic, 4)
    assert (first.key, first.value) == (b"k\n1", b'\xef\xbb\xbf{"order": 1}\r\n{"order": 3}\r\n')
    assert (second.key, second.value) == (b"k3", b"one\r\ntwo\n")


def test_what_is_typed_where_there_was_null_is_sent(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    headers = CAUSE | {dead_letters.TOPIC: topic.encode()}
    pond.producer.produce(letters, None, b"k", headers=list(headers.items()))
    pond.produce(topic, (b"k1", b"x"), (b"k2", b"y"))
    page = tab.open(f"/letters/{letters}")
    page.get_by_role("button", name="Letter 0:0").click()
    page.get_by_text("Key or value differ from the letter.").wait_for()
    page.get_by_role("button", name="Edit and redrive").click()
    page.get_by_label("Value", exact=True).fill("typed")
    assert page.get_by_label("The value is").input_value() == "text"
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_role("button", name="Redrive 1 letter").click()
    page.locator(".note", has_text="Redrove 1 letter").wait_for()
    assert pond.consume(topic, 3)[-1].value == b"typed"


def test_a_timeout_is_not_shown_as_empty(tab: Tab) -> None:
    bounds = [{"partition": 0, "start": 0, "end": 9, "shown": [9, 9]}]
    records = {"records": [], "partitions": bounds, "leaderless": [], "is_whole": False}
    letters = {"topic_id": "", "letters": [], "leaderless": [], "looked": 5, "total": 9, "is_whole": False}
    tab.page.route(re.compile(r"/api/topics/orders/records\?"), lambda route: route.fulfill(json=records))
    tab.page.route(re.compile(r"/api/letters/orders\.dlq\?"), lambda route: route.fulfill(json=letters))
    for path in ("/topics/orders/records", "/letters/orders.dlq", "/letters/orders.dlq?key=k"):
        page = tab.open(path)
        page.locator(".empty", has_text="in the time limit").wait_for()
        page.get_by_text("the time limit was reached").first.wait_for()
    page = tab.open("/topics/orders/records")
    # Though no record came, there is a way on.
    page.get_by_role("button", name="Older").click()
    until(lambda: page.evaluate("location.search") == "?before=0%3A9")


def test_letters_held_back_by_a_transaction_are_not_shown_as_empty(tab: Tab, pond: Pond) -> None:
    letters = pond.create_topic(f"{pond.new_topic(1)}.dlq")
    page = tab.open(f"/letters/{letters}")
    page.get_by_text("This topic is empty.").wait_for()
    producer = Producer(pond.client_settings(transactional_id=f"{letters}-t"))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(letters, b"1", headers=list(CAUSE.items()))
    producer.flush(30)
    page = tab.open(f"/letters/{letters}")
    page.get_by_text("No letter can be read yet.").wait_for()
    producer.abort_transaction(30)


def test_letters_beyond_the_longest_list_are_a_page_further(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    letters = pond.create_topic(f"{topic}.dlq")
    pond.produce(letters, *(str(number) for number in range(503)), headers=CAUSE)
    page = tab.open(f"/letters/{letters}?limit=500")
    page.get_by_role("button", name="Letter 0:502").wait_for()
    page.get_by_role("button", name="Older").click()
    page.get_by_role("button", name="Letter 0:2", exact=True).wait_for()
    assert page.locator("tr.pick").count() == 3
    page.get_by_role("button", name="Newest").click()
    page.get_by_role("button", name="Letter 0:502").wait_for()


def test_what_is_shown_of_data_is_what_it_is(tab: Tab) -> None:
    """The functions themselves, as the pages load them."""
    page = tab.open("/")
    page.locator(READY).first.wait_for()
    cut = """async () => { const { isCut } = await import('/static/js/data.js');
        return [10, 11, 12].flatMap((there) => [0, 1, 2, 3].map((more) =>
            isCut({ bytes: there + more, data: btoa('x'.repeat(there)) }))); }"""
    assert page.evaluate(cut) == [False, True, True, True] * 3
    indent = """async (text) => (await import('/static/js/data.js')).indented(text)"""
    json = '{"id":12345678901234567890,"a":[1.0,-0,1e400,[],{}],"a":"{[,:\\\\\\"","b":{"c":null}}'
    assert page.evaluate(indent, "\ufeff" + json) == (
        '{\n  "id": 12345678901234567890,\n  "a": [\n    1.0,\n    -0,\n    1e400,\n    [],\n    {}\n  ],\n'
        '  "a": "{[,:\\\\\\"",\n  "b": {\n    "c": null\n  }\n}'
    )
    assert page.evaluate(indent, '{"a": 1') is None
    assert page.evaluate(indent, "[" * 5000 + "]" * 5000) is None


def test_avro_is_decoded_with_a_given_schema(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    # Schema 7 of a registry, then {"name": "Ann", "ages": [3, -2]}.
    pond.produce(topic, ("k", b"\x00\x00\x00\x00\x07\x06Ann\x04\x06\x03\x00"))
    page = tab.open(f"/topics/{topic}/records")
    page.locator("button.open").first.click()
    page.get_by_role("button", name="Avro").last.click()
    schema = (
        '{"type": "record", "name": "a.Person", "fields": [{"name": "name", "type": "string"},'
        ' {"name": "ages", "type": {"type": "array", "items": "int"}}]}'
    )
    page.get_by_label("Schema", exact=True).fill(schema)
    page.get_by_role("button", name="Use it").click()
    shown = page.locator("pre.data", has_text="schema 7 of the registry")
    shown.wait_for()
    assert '"Ann"' in shown.text_content()
    assert "-2" in shown.text_content()
    # What does not fit is said, not guessed.
    page.evaluate("topic => localStorage.setItem(`avro value ${topic}`, '\"boolean\"')", topic)
    page.get_by_role("button", name="Hex").last.click()
    page.get_by_role("button", name="Avro").last.click()
    page.locator("pre.data", has_text="This is not Avro of that schema").wait_for()


def test_a_record_is_shown_as_code_that_runs(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(1)
    pond.produce(topic, (b'k"\\', b"\xff\n'x"), headers={"trace": b"a"})
    page = tab.open(f"/topics/{topic}/records")
    page.locator("button.open").first.click()
    page.get_by_role("button", name="Python that writes it again").click()
    code = page.locator("pre[aria-label=code]").text_content()
    exec(compile(code, "shown", "exec"), {})
    first, second = pond.consume(topic, 2)
    assert (first.key, first.value, first.headers) == (second.key, second.value, second.headers)
    page.get_by_role("button", name="Command").click()
    assert f"millpond consume {topic}" in page.locator("pre[aria-label=code]").text_content()


def test_a_trace_is_measured_and_drawn(tab: Tab) -> None:
    page = tab.open("/trace?count=5")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("heading", name="Hop by hop").wait_for()
    names = page.locator(".waterfall .name").all_text_contents()
    assert names == ["linger", "send", "append", "sync", "acknowledge", "fetch", "process"]


def test_a_plan_follows_its_sliders(tab: Tab) -> None:
    page = tab.open("/plan?messages_per_second=1000000")
    brokers = page.locator(".tile", has_text="Brokers").locator(".value")
    brokers.wait_for()
    # A million messages of 1 KB a second, for a week, in three replicas: the disks decide.
    assert brokers.text_content() == "91"
    page.get_by_label("Replicas", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    page.locator(".tile .value", has_text="61").wait_for()
    assert "replication=2" in page.url


def test_a_hot_key_is_found_with_a_way_out(tab: Tab, pond: Pond) -> None:
    topic = pond.new_topic(4)
    pond.produce(topic, *((f"key-{number}", "x" * 50) for number in range(200)))
    pond.produce(topic, *(("whale", "x" * 50) for _ in range(600)))
    page = tab.open(f"/hot/{topic}")
    page.locator(".health strong", has_text="A hot key").wait_for()
    page.locator("td", has_text="whale").first.wait_for()
    page.get_by_role("heading", name="Spread the hot keys").wait_for()


def test_pipelines_are_shown_as_their_runs_write_them(browser: Any, pond: Pond, tmp_path: Path) -> None:
    from millpond.spark.pipelines.progress import JobFigures, Snapshot
    from millpond.spark.pipelines.status import write_status

    job = JobFigures("archive", "archive", "finished", batch=4, lag=0, rows_in=1200, writes={"topic": "orders"})
    snapshot = Snapshot(
        "nightly", "finished", 1, 1_000, 61_000, (job,), source="orders", dead_letters={"orders.dlq": 2}
    )
    write_status(tmp_path / "nightly", snapshot)
    console = Console(pond.bootstrap, "--pipelines", str(tmp_path))
    tab = Tab(browser, console)
    try:
        page = tab.open("/pipelines")
        page.get_by_role("heading", name="nightly").wait_for()
        page.get_by_text("orders.dlq +2").wait_for()
        page.get_by_role("cell", name="archive").first.wait_for()
        page.get_by_text("after 1m").wait_for()
    finally:
        tab.context.close()
        console.close()
    assert tab.faults == []


def test_without_a_session_the_login_form_is_shown(browser: Any, pond: Pond, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    console = Console(pond.bootstrap, "--password-file", str(secret))
    tab = Tab(browser, console)
    try:
        page = tab.open("/topics")
        page.get_by_label("Password").fill("wrong password")
        page.keyboard.press("Enter")
        page.get_by_text("Wrong password.").wait_for()
        page.get_by_label("Password").fill("open sesame")
        page.keyboard.press("Enter")
        page.locator("td", has_text="orders").first.wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Password").wait_for()
    finally:
        tab.context.close()
        console.close()
    # A browser says in its console which questions were refused; nothing else went wrong.
    assert [each for each in tab.faults if "401" not in each] == []


def test_a_lost_connection_is_shown_and_recovers(browser: Any, pond: Pond) -> None:
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
