"""Work queues over HTTP: what waits and what is out with whom, the next jobs, a purge of what was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from millpond.testing import Pond
from support.browser import PHONE, Tab, unnamed
from support.console import Console, until

LOOKS_MAX = 20


class Queue:
    """A topic with one partition and its share group, as the console serves them."""

    def __init__(self, console: Console, pond: Pond, topic: str, group: str) -> None:
        self.console, self.topic, self.group = console, topic, group
        self._settings = pond.client_settings()
        self._pond = pond
        self._members: list[ShareConsumer] = []
        self.path = f"{quote(group, safe='')}/{topic}"
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
        admin = AdminClient(self._settings)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()

    def send(self, *values: str) -> None:
        self._pond.produce(self.topic, *values)

    def take(self) -> list[str]:
        """The records that a new worker receives, and then holds: it never polls again."""
        member = ShareConsumer(self._settings | {"group.id": self.group, "client.id": "mailer", "log_level": 0})
        self._members.append(member)
        member.subscribe([self.topic])
        found = until(lambda: list(member.poll(0.5)), 60)
        return [each.value().decode() for each in found]

    def finish(self) -> None:
        """All workers accept what they hold, and leave."""
        for member in self._members:
            member.commit_sync()
        self.close()

    def close(self) -> None:
        while self._members:
            self._members.pop().close()

    def look(self, condition: Callable[[Any], Any]) -> dict[str, Any]:
        """What the live view shows, once the condition holds."""
        looks = islice(self.console.events(f"/api/live/queues/{self.path}", "look"), LOOKS_MAX)
        return next(each for each in looks if condition(each))

    def row(self) -> dict[str, Any]:
        listed = self.console.first_event("/api/live/queues")
        (row,) = [each for each in listed["queues"] if (each["group"], each["topic"]) == (self.group, self.topic)]
        return dict(row)

    def jobs(self, more: str = "") -> list[tuple[int, str, int | None]]:
        body = self.console.get(f"/api/queues/{self.path}/jobs{more}").body
        return [(each["record"]["offset"], each["state"], each["deliveries"]) for each in body["jobs"]]

    def count(self) -> dict[str, Any]:
        """The task that counts what a purge would skip."""
        job = self.console.change("POST", f"/api/queues/{self.path}/purge", {}).body
        return dict(
            until(lambda: (now := self.console.get(f"/api/jobs/{job['id']}").body)["state"] != "running" and now)
        )

    def purge(self, agreed: str) -> Any:
        return self.console.change("POST", f"/api/queues/{self.path}/purge", {"agreed": agreed})


@pytest.fixture
def queue(console: Console, pond: Pond) -> Iterator[Queue]:
    topic = pond.new_topic(1)
    made = Queue(console, pond, topic, f"mail/{topic}")
    yield made
    made.close()


def test_a_queue_shows_what_waits_and_what_is_out_with_whom(queue: Queue) -> None:
    queue.send("one", "two", "three")
    assert queue.take() == ["one", "two", "three"]
    queue.send("four", "five")
    look = queue.look(lambda look: look["waiting"] == 2)
    assert (look["out"], look["delayed"], look["members"]) == (3, 0, 1)
    (holder,) = look["holders"]
    assert (holder["client"], holder["records"], holder["host"]) == ("mailer", 3, "127.0.0.1")
    assert 0 < holder["lock_left_ms"] <= 30_000
    (partition,) = look["partitions"]
    assert (partition["start"], partition["end"], partition["unfinished"]) == (0, 5, 5)
    assert [each["records"] for each in partition["holders"]] == [3]
    assert look["oldest_age_ms"] >= 0
    assert look["totals"]["delivered"] == 3
    assert look["rates"]["finished"] == 0
    row = queue.row()
    assert (row["waiting"], row["out"], row["holders_total"], row["state"]) == (2, 3, 1, "stable")
    assert queue.jobs() == [(0, "out", 1), (1, "out", 1), (2, "out", 1), (3, "waiting", 0), (4, "waiting", 0)]
    assert len(queue.jobs("?limit=2")) == 2
    settings = queue.console.get(f"/api/queues/{queue.path}/settings").body
    assert {each["name"]: each["value"] for each in settings}["share.auto.offset.reset"] == "earliest"


def test_what_a_worker_finishes_is_gone(queue: Queue) -> None:
    queue.send("one", "two")
    queue.take()
    queue.finish()
    queue.send("three")
    look = queue.look(lambda look: look["waiting"] == 1)
    assert (look["members"], look["state"]) == (0, "empty")
    assert queue.take() == ["three"]
    assert queue.jobs() == [(2, "out", 1)]


def test_a_purge_skips_exactly_what_was_counted(queue: Queue, pond: Pond, console: Console) -> None:
    queue.send("one", "two", "three")
    queue.take()
    busy = queue.count()
    assert busy["state"] == "failed"
    assert "active member" in busy["error"]
    queue.finish()
    queue.send("four", "five")
    counted = queue.count()
    assert (counted["state"], counted["result"]) == ("done", {"records": 2})
    queue.send("late")
    other = Queue(console, pond, pond.new_topic(1), "other")
    assert other.purge(counted["id"]).status == 400
    assert queue.purge("nonsense").status == 409
    assert queue.purge(counted["id"]).body == {"records": 2}
    assert [offset for offset, _, _ in queue.jobs()] == [5]
    assert queue.take() == ["late"]


def test_what_is_no_queue_says_so(console: Console, pond: Pond) -> None:
    failure = console.first_event("/api/live/queues/nobody/orders", "failure")
    assert "Group nobody does not read orders" in failure["error"]
    assert console.get("/api/queues/nobody/nowhere/jobs").status == 409
    assert console.get("/api/queues/nobody/orders/jobs?limit=1000").status == 400
    assert console.get("/api/queues/nobody/orders/jobs").body["jobs"] == []


def test_a_read_only_console_purges_nothing(pond: Pond) -> None:
    read_only = Console(pond.bootstrap, "--read-only")
    try:
        refused = read_only.change("POST", "/api/queues/mail/orders/purge", {})
        assert refused.status == 403
        assert "read-only" in refused.body["error"]
    finally:
        read_only.close()


def test_the_page_of_queues(tab: Tab, queue: Queue) -> None:
    queue.send("one", "two")
    queue.take()
    queue.send('{"mail": 3}')
    page = tab.open("/queues")
    page.get_by_role("link", name=queue.topic, exact=True).click()
    page.locator("h1", has_text=queue.topic).wait_for()
    page.locator("td", has_text="mailer").first.wait_for()
    page.get_by_role("button", name="Next jobs").click()
    page.locator("td.value", has_text='{"mail": 3}').wait_for()
    assert page.locator(".state", has_text="out").count() == 2
    page.get_by_role("button", name="Purge …").click()
    page.get_by_role("button", name="Count them").click()
    page.locator("dialog .fault", has_text="active member").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Send one …").click()
    page.get_by_label("Value", exact=True).fill("later")
    page.locator("select[name=when]").select_option("in")
    page.locator("select[name=priority]").select_option("9")
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator(".note", has_text="Sent to partition 0, offset 3").wait_for()
    (sent,) = header_names(queue)
    assert sent == ["queue.deliver-at", "queue.priority"]
    assert unnamed(page) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.goto(page.url.rpartition("/queues")[0] + "/queues")
    page.get_by_role("link", name=queue.topic, exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def header_names(queue: Queue) -> list[list[str]]:
    records = queue.console.get(f"/api/topics/{queue.topic}/records?from=3").body["records"]
    return [[name for name, _ in each["headers"]] for each in records]
