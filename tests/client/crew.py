"""Three workers of one group whose partitions move by seed, and the checks of what they handled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client.stub_group import TERM, TOPIC, Group, StubSender, stub_make
from millpond import Message, Retry, Send, Worker
from millpond.base.ids import TopicPartition
from millpond.client.call_thread import CallThread
from millpond.client.worker_producers import WorkerProducers

WORKERS = 3
DELIVERIES = ["at_least_once", "exactly_once", "at_most_once"]
IN_ORDER = Retry(50, first_s=0.001, jitter=0.0)
IN_TOPICS = Retry(50, first_s=0.002, factor=10.0, longest_s=0.5, jitter=0.0, order="none", topics_from_s=0.1)
"""Two delays in memory, all further ones in topics. Without jitter, only the seed decides."""


def lose_chance(delivery: str) -> float:
    """A removed member that commits before it works would lose records."""
    return 0.0 if delivery == "at_most_once" else 0.02


def use_stub(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    for module in ("consumer", "transactions"):
        monkeypatch.setattr(f"millpond.client.{module}.make", stub_make(group))
    # The caller waits anyway and the stub never blocks, so save a thread.
    monkeypatch.setattr(CallThread, "run", lambda _self, function, *arguments, **_: function(*arguments))


class Crew:
    def __init__(
        self,
        group: Group,
        delivery: Any,
        monkeypatch: pytest.MonkeyPatch,
        *,
        sender: StubSender | None = None,
        work: Callable[[], None] = lambda: None,
        fail_chance: float = 0.01,
        **options: Any,
    ) -> None:
        self.group = group
        self.delivery = delivery
        self.handled: Counter[bytes] = Counter()
        self.too_late: list[str] = []
        """Records that ran although their partition had been revoked."""
        self._chance = random.Random(group.seed)
        self._work = work
        self._fail_chance = 0.0 if delivery == "at_most_once" else fail_chance
        self._sends = delivery == "exactly_once" or sender is not None
        use_stub(monkeypatch, group)
        if sender is not None:
            monkeypatch.setattr(WorkerProducers, "batching", lambda _: sender)
        monkeypatch.setattr("millpond.client.engine.ensure_topics", lambda *_: None)
        chosen = {"concurrency": 3, "commit_every_s": 0.002, "in_flight_max": 40, "retries": IN_ORDER} | options
        if delivery == "at_most_once":
            chosen["retries"] = Retry(1)
        self.workers = [Worker(self._handle, TOPIC, group="g", delivery=delivery, **chosen) for _ in range(WORKERS)]

    def start(self) -> None:
        for each in self.workers:
            each.start("nowhere")

    def stop(self) -> None:
        for each in self.workers:
            each.stop()

    def is_over(self) -> bool:
        """Whether everything is done or a worker has ended early. Committed records may still have to be handled."""
        if not all(each.is_running() for each in self.workers):
            return True
        return self.group.is_done() and (self.delivery != "at_most_once" or not self._missing())

    def describe(self) -> str:
        engines: list[Any] = [each._engine for each in self.workers]
        in_flight = [vars(each._in_flight) for each in engines]
        return f"{self.group.describe()}\nnot handled: {self._missing()}\nin flight: {in_flight}"

    def check(self) -> None:
        seed, outputs = self.group.seed, self.group.outputs
        assert self.too_late == [], f"seed {seed}: handled after the partition was revoked"
        assert self._missing() == [], f"seed {seed}: skipped"
        if self.delivery == "exactly_once":
            assert Counter(outputs) == Counter(self._wanted()), f"seed {seed}: doubled or lost outputs"
        elif self._sends:
            assert set(outputs) == set(self._wanted()), f"seed {seed}: lost outputs"
        if self.delivery == "at_most_once":
            twice = [each for each, times in self.handled.items() if times > 1]
            assert twice == [], f"seed {seed}: handled twice"

    def _wanted(self) -> list[bytes]:
        group = self.group
        return [b"%d/%d" % (n, at) for n in range(group.partitions) for at in range(group.records_each)]

    def _missing(self) -> list[bytes]:
        return [each for each in self._wanted() if each not in self.handled]

    def _handle(self, message: Message) -> Iterator[Send]:
        self._look(message)
        self._work()
        self._look(message)
        with self.group.lock:
            if self._chance.random() < self._fail_chance:
                raise ValueError("try again")
            self.handled[message.value or b""] += 1
        if self._sends:
            yield Send("out", message.value)

    def _look(self, message: Message) -> None:
        holding = TopicPartition(message.topic, message.partition), int(message.header(TERM) or b"")
        with self.group.lock:
            if holding in self.group.revoked:
                self.too_late.append(f"{message}")
