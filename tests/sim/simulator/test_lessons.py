"""Every lesson shows what it says: judged by the state of the engine, at the question and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.simulation import Simulation
from millpond.sim.simulator.snapshot import Observer

CHECKS: dict[str, Callable[[Played], None]] = {}


class Played:
    """A lesson paused at its question; `end` plays the answer."""

    def __init__(self, name: str) -> None:
        self.lesson = LESSONS[name]
        self.simulation = Simulation(self.lesson.tape)
        self.observer = Observer(self.simulation)
        self.simulation.run_to(self.lesson.question_ms)
        self.question = self.observer.look()

    def after(self, ms: int) -> dict[str, Any]:
        """This long after the question."""
        self.simulation.run_to(self.lesson.question_ms + ms)
        return self.observer.look()

    def end(self) -> dict[str, Any]:
        self.simulation.run_to(self.lesson.tape.end_ms)
        return self.observer.look()

    def owned_in_between(self, step_ms: int = 10) -> Iterator[dict[str, frozenset[int]]]:
        """Who had what, all through the answer."""
        for moment in range(self.lesson.question_ms, self.lesson.tape.end_ms, step_ms):
            self.simulation.run_to(moment)
            yield {name: each.owned for name, each in self.simulation.consumers.items()}


def check(name: str) -> Callable[[Callable[[Played], None]], Callable[[Played], None]]:
    def keep(test: Callable[[Played], None]) -> Callable[[Played], None]:
        CHECKS[name] = test
        return test

    return keep


def topic(look: dict[str, Any], name: str = "orders") -> dict[str, Any]:
    (found,) = [each for each in look["topics"] if each["name"] == name]
    return found


def leader_log(look: dict[str, Any], name: str = "orders", index: int = 0) -> dict[str, Any]:
    part = topic(look, name)["partitions"][index]
    (log,) = [each for each in part["logs"] if each["node"] == part["leader"]]
    return log


def values(log: dict[str, Any]) -> list[str]:
    return [each["value"] for each in log["records"]]


def by_key(look: dict[str, Any], name: str = "orders") -> dict[str | None, Counter[int]]:
    """In which partitions each key is, and how often."""
    result: dict[str | None, Counter[int]] = {}
    for index in range(len(topic(look, name)["partitions"])):
        for record in leader_log(look, name, index)["records"]:
            result.setdefault(record["key"], Counter())[index] += 1
    return result


def group(look: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in look["groups"] if each["name"] == name]
    return found


def lag(look: dict[str, Any], name: str, of: str = "orders") -> int:
    return sum(group(look, name)["lag"][of].values())


def consumer(look: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in look["consumers"] if each["name"] == name]
    return found


def handled(look: dict[str, Any], name: str) -> list[str]:
    """By this group, in order (the last forty)."""
    return [each["name"] for each in look["handled"] if each["group"] == name]


def verdict(look: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = look["verdict"]["groups"][name]
    return found


def nothing_lost(look: dict[str, Any]) -> bool:
    return look["verdict"]["lost"]["count"] == 0


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_shows_what_it_says(name: str) -> None:
    CHECKS[name](Played(name))


# Keys, partitions and order


@check("keys")
def _(played: Played) -> None:
    look = played.end()
    keys = by_key(look)
    assert keys.pop(None) == {0: 2, 1: 2, 2: 2}
    assert all(len(partitions) == 1 for partitions in keys.values())
    assert len({next(iter(partitions)) for partitions in keys.values()}) > 1
    for index in range(3):
        log = leader_log(look, index=index)
        assert [each["offset"] for each in log["records"]] == list(range(log["start"], log["end"]))


@check("a1-b1-a2")
def _(played: Played) -> None:
    assert handled(played.end(), "readers") == ["B1", "A1", "A2"]


@check("total-order")
def _(played: Played) -> None:
    look = played.end()
    assert sorted(len(each["owned"]) for each in look["consumers"]) == [0, 1]
    assert handled(look, "readers") == values(leader_log(look))
    assert len(handled(look, "readers")) == 12


@check("more-partitions")
def _(played: Played) -> None:
    assert all(len(partitions) == 1 for partitions in by_key(played.question).values())
    moved = {key for key, partitions in by_key(played.end()).items() if len(partitions) > 1}
    assert moved == {"cem", "dan"}


@check("hot-merchant")
def _(played: Played) -> None:
    look = played.end()
    hot = [log["count"] for log in (leader_log(look, "orders", index) for index in range(4))]
    salted = [log["count"] for log in (leader_log(look, "salted", index) for index in range(4))]
    assert sum(hot) == sum(salted) == 40
    assert max(hot) >= 32
    assert min(salted) > 0
    assert max(salted) < 20


# Groups


@check("idle-consumers")
def _(played: Played) -> None:
    assert sorted(len(each["owned"]) for each in played.question["consumers"]) == [0] * 4 + [1] * 6
    assert [len(each["owned"]) for each in played.end()["consumers"]] == [1] * 10


@check("two-groups")
def _(played: Played) -> None:
    assert verdict(played.question, "billing")["records"] == 12
    look = played.end()
    assert verdict(look, "analytics")["records"] == verdict(look, "billing")["records"] == 12
    assert verdict(look, "billing")["twice"]["count"] == 0
    assert all(consumer(look, f"billing-{number}")["handled"] for number in (1, 2))


@check("slow-group")
def _(played: Played) -> None:
    look = played.end()
    assert look["verdict"]["acknowledged"] == 60
    assert lag(look, "quick") <= 5 < 20 < lag(look, "slow")


@check("lag")
def _(played: Played) -> None:
    assert lag(played.question, "workers") > 40
    look = played.end()
    assert lag(look, "workers") == 0
    assert all(each["handled"] > 5 for each in look["consumers"])
    assert nothing_lost(look)
    assert verdict(look, "workers")["records"] == 90


@check("consumer-away")
def _(played: Played) -> None:
    assert played.question["verdict"]["acknowledged"] == 18
    assert verdict(played.question, "mail")["records"] <= 6
    look = played.end()
    assert verdict(look, "mail")["records"] == 18
    assert verdict(look, "mail")["passed_over"]["count"] == 0


@check("replay")
def _(played: Played) -> None:
    assert verdict(played.question, "index")["twice"]["count"] == 0
    assert verdict(played.end(), "index")["twice"]["count"] == 9


def _shares(look: dict[str, Any]) -> list[int]:
    return sorted(len(each["owned"]) for each in look["consumers"])


@check("eager")
def _(played: Played) -> None:
    assert _shares(played.question) == [3, 3]
    assert any(not any(owned.values()) for owned in played.owned_in_between())
    assert _shares(played.end()) == [2, 2, 2]


@check("cooperative")
def _(played: Played) -> None:
    _is_moved_gently(played)


@check("kip-848")
def _(played: Played) -> None:
    _is_moved_gently(played)


def _is_moved_gently(played: Played) -> None:
    before = {each["name"]: set(each["owned"]) for each in played.question["consumers"]}
    assert _shares(played.question) == [3, 3]
    assert all(len(owned[name]) >= 2 for owned in played.owned_in_between() for name in before)
    look = played.end()
    assert _shares(look) == [2, 2, 2]
    assert all(set(consumer(look, name)["owned"]) < owned for name, owned in before.items())


@check("static-member")
def _(played: Played) -> None:
    look = played.end()
    assert consumer(look, "worker-2")["life"] == 2
    assert consumer(look, "worker-2")["owned"] == consumer(played.question, "worker-2")["owned"] != []
    assert group(look, "workers")["generation"] == group(played.question, "workers")["generation"]


@check("rebalance-storm")
def _(played: Played) -> None:
    assert group(played.end(), "workers")["generation"] >= group(played.question, "workers")["generation"] + 6


@check("crashed-member")
def _(played: Played) -> None:
    look = played.end()
    assert consumer(look, "worker-2")["owned"] == [0, 1, 2, 3]
    assert verdict(look, "workers")["records"] == 40
    assert verdict(look, "workers")["passed_over"]["count"] == 0
    assert lag(look, "workers") == 0


# Delivery


@check("at-least-once")
def _(played: Played) -> None:
    facts = verdict(played.end(), "mail")
    assert facts["twice"]["count"] > 0 == facts["passed_over"]["count"]
    assert facts["records"] == 8


@check("at-most-once")
def _(played: Played) -> None:
    facts = verdict(played.end(), "mail")
    assert facts["passed_over"]["count"] > 0 == facts["twice"]["count"]


@check("idempotent-consumer")
def _(played: Played) -> None:
    facts = verdict(played.end(), "pay")
    assert facts["recognised"] > 0 == facts["twice"]["count"] == facts["passed_over"]["count"]
    assert facts["records"] == 8


@check("exactly-once")
def _(played: Played) -> None:
    look = played.end()
    outputs = look["verdict"]["outputs"]["invoices"]
    assert outputs["sources"] == 8
    assert outputs["twice"]["count"] == 0 < outputs["not_shown"]
    assert verdict(look, "invoice")["outside_twice"] > 0
    assert nothing_lost(look)


@check("lost-acknowledgement")
def _(played: Played) -> None:
    look = played.end()
    assert look["verdict"]["twice_in_log"]["names"] == ["plain 1"]
    assert look["verdict"]["acknowledged"] == 4


@check("poison")
def _(played: Played) -> None:
    look = played.end()
    assert verdict(look, "shop")["failing"]["names"] == ["poison"]
    lags = group(look, "shop")["lag"]["orders"]
    assert lags[0] > 0 == lags[1] == lags[2]


@check("dead-letters")
def _(played: Played) -> None:
    look = played.end()
    assert verdict(look, "shop")["dead_letters"]["names"] == ["poison"]
    assert lag(look, "shop") == 0
    assert values(leader_log(look, "orders.dlq")) == ["orders-0:0 failed 3 times"]


@check("isolation")
def _(played: Played) -> None:
    look = played.after(500)
    assert handled(look, "careful") == []
    look = played.end()
    assert sorted(handled(look, "careful")) == ["commit 1", "commit 2", "commit 3"]
    assert sorted(handled(look, "careless")) == [f"{ending} {n}" for ending in ("abort", "commit") for n in (1, 2, 3)]


@check("hanging-transaction")
def _(played: Played) -> None:
    look = played.after(1500)
    log = leader_log(look)
    assert log["last_stable"] < log["high_watermark"] == log["end"]
    assert handled(look, "careful") == []
    assert handled(played.end(), "careful") == ["behind 1", "behind 2", "behind 3"]


# Work queues


def window(look: dict[str, Any], name: str, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = group(look, name)["windows"][index]
    return found


@check("forty-workers")
def _(played: Played) -> None:
    owners = [each for each in played.question["consumers"] if each["owned"]]
    assert [each["group"] for each in owners] == ["readers"]
    look = played.after(500)
    assert verdict(look, "queue")["records"] == 80
    assert verdict(look, "readers")["records"] < 20
    workers = [each for each in look["consumers"] if each["group"] == "queue"]
    assert len(workers) == 40
    assert all(each["handled"] and each["owned"] == [0] for each in workers)
    assert verdict(played.end(), "queue")["deliveries"] == 80


@check("lock-too-short")
def _(played: Played) -> None:
    (cell,) = window(played.question, "queue")["cells"]
    assert (cell["state"], cell["holder"], cell["deliveries"]) == ("acquired", "slow", 1)
    (cell,) = window(played.after(300), "queue")["cells"]
    assert (cell["state"], cell["holder"], cell["deliveries"]) == ("acquired", "quick", 2)
    look = played.after(1400)
    assert handled(look, "queue") == ["job 1", "job 1"]
    assert [each["consumer"] for each in look["handled"]] == ["slow", "quick"]
    refused = [line for line in look["story"] if "refused: INVALID_RECORD_STATE" in line["text"]]
    assert [line["who"] for line in refused] == ["slow"]
    look = played.end()
    assert verdict(look, "queue")["twice"]["names"] == ["job 1"]
    assert [each["consumer"] for each in look["handled"] if each["name"] == "job 2"] == ["slow"]


@check("poison-job")
def _(played: Played) -> None:
    look = played.end()
    facts = verdict(look, "queue")
    assert facts["given_up"]["names"] == ["poison"]
    assert facts["twice"]["count"] == facts["failing"]["count"] == 0
    assert facts["deliveries"] == 7 + 3
    assert sorted(handled(look, "queue")) == [
        "after 1",
        "after 2",
        "after 3",
        "after 4",
        "after 5",
        "after 6",
        "before",
    ]
    last_try = max(line["at_ms"] for line in look["story"] if "cannot process" in line["text"])
    assert min(each["at_ms"] for each in look["handled"]) < last_try, "its neighbours did not wait for it"
    assert values(leader_log(look))[1] == "poison"
    assert (window(look, "queue")["start"], window(look, "queue")["cells"]) == (8, [])


@check("worker-dies")
def _(played: Played) -> None:
    assert {each["holder"] for each in window(played.question, "queue")["cells"]} == {"worker-1", "worker-2"}
    look = played.end()
    facts = verdict(look, "queue")
    assert (facts["records"], facts["twice"]["count"], facts["given_up"]["count"]) == (2, 1, 0)
    assert consumer(look, "worker-1")["state"] == "crashed"
    (again,) = [line for line in look["story"] if "delivery 2" in line["text"]]
    (killed,) = [line for line in look["story"] if "before its acknowledgement" in line["text"]]
    assert again["who"] == "worker-2"
    assert again["at_ms"] - killed["at_ms"] < 1_000, "long before the lock of 30 s expires"


# What acknowledged means


@check("acks-0")
def _(played: Played) -> None:
    look = played.end()
    (producer,) = look["producers"]
    assert producer["counts"]["unasked"] == 5
    assert producer["counts"]["acknowledged"] == producer["counts"]["refused"] == 0
    assert values(leader_log(look)) == ["heard 1", "heard 2"]


@check("acks-1")
def _(played: Played) -> None:
    assert played.question["verdict"]["acknowledged"] == 5
    look = played.end()
    assert look["verdict"]["lost"]["names"] == ["window 1", "window 2"]
    assert leader_log(look)["node"] != leader_log(played.question)["node"]


@check("acks-all")
def _(played: Played) -> None:
    assert played.question["verdict"]["acknowledged"] == 3
    look = played.end()
    assert look["verdict"]["acknowledged"] == 5
    assert nothing_lost(look)
    assert values(leader_log(look)) == ["safe 1", "safe 2", "safe 3", "window 1", "window 2"]


@check("min-insync")
def _(played: Played) -> None:
    assert played.question["verdict"]["acknowledged"] == 4
    assert topic(played.question)["partitions"][0]["isr"] == [topic(played.question)["partitions"][0]["leader"]]
    assert played.after(1400)["verdict"]["acknowledged"] == 4
    look = played.end()
    assert look["verdict"]["acknowledged"] == 6
    assert nothing_lost(look)


@check("high-watermark")
def _(played: Played) -> None:
    log = leader_log(played.question)
    assert log["high_watermark"] == 0 < log["end"] == 2
    assert handled(played.question, "readers") == []
    look = played.end()
    assert leader_log(look)["high_watermark"] == 2
    assert len(handled(look, "readers")) == 2


@check("failover")
def _(played: Played) -> None:
    old = leader_log(played.question)["node"]
    assert leader_log(played.after(4400))["node"] != old
    look = played.end()
    assert look["verdict"]["acknowledged"] == 60
    assert nothing_lost(look)
    assert verdict(look, "readers")["records"] == 60
    assert sorted(topic(look)["partitions"][0]["isr"]) == [1, 2, 3]


@check("controller")
def _(played: Played) -> None:
    old = played.question["controller"]
    for ms in range(10, 3000, 10):
        look = played.after(ms)
        if look["controller"] not in (None, old):
            break
    # Some of the thirty were acknowledged while there was no controller.
    assert look["verdict"]["acknowledged"] > played.question["verdict"]["acknowledged"]
    look = played.end()
    assert look["controller"] not in (None, old)
    assert topic(look, "afterwards")["partitions"][0]["leader"] is not None
    assert look["verdict"]["acknowledged"] == 42
    assert nothing_lost(look)


@check("clean-wait")
def _(played: Played) -> None:
    look = played.after(4900)
    assert sum(node["is_up"] for node in look["nodes"]) == 2
    assert topic(look)["partitions"][0]["leader"] is None
    look = played.end()
    assert values(leader_log(look)) == ["both 1", "both 2", "alone 1", "alone 2", "alone 3"]
    assert nothing_lost(look)


@check("unclean-election")
def _(played: Played) -> None:
    assert topic(played.question)["partitions"][0]["leader"] is None
    look = played.end()
    assert look["verdict"]["lost"]["names"] == ["alone 1", "alone 2", "alone 3"]
    ends = {log["end"] for log in topic(look)["partitions"][0]["logs"]}
    assert ends == {2}


@check("cut-off-leader")
def _(played: Played) -> None:
    old = leader_log(played.question)["node"]
    look = played.end()
    assert leader_log(look)["node"] != old
    assert look["verdict"]["acknowledged"] == 5
    assert nothing_lost(look)
    assert look["verdict"]["twice_in_log"]["count"] == 0
    assert len({(log["end"], log["count"]) for log in topic(look)["partitions"][0]["logs"]}) == 1


@check("power-loss")
def _(played: Played) -> None:
    assert nothing_lost(played.question)
    assert values(leader_log(played.question)) == ["first 1", "first 2", "first 3"]
    lost = played.end()["verdict"]["lost"]["names"]
    assert lost
    assert all(name.startswith("cached") for name in lost)


@check("back-pressure")
def _(played: Played) -> None:
    (producer,) = played.after(1000)["producers"]
    assert producer["blocked"] > 0
    assert producer["buffered"] == producer["buffer_max"] == 20
    look = played.end()
    assert look["verdict"]["acknowledged"] == 140
    assert nothing_lost(look)


# What is kept


@check("retention")
def _(played: Played) -> None:
    look = played.end()
    log = leader_log(look)
    assert 0 < log["start"] <= 20
    assert log["end"] == 23
    assert look["verdict"]["deleted"]["count"] >= log["start"] - 1 > 0
    assert nothing_lost(look)
    assert verdict(look, "readers")["records"] == 23


@check("lag-and-retention")
def _(played: Played) -> None:
    look = played.end()
    assert look["verdict"]["acknowledged"] == 43
    unread = 43 - verdict(look, "readers")["records"]
    assert unread > 0
    assert look["verdict"]["deleted"]["count"] > 0
    assert lag(look, "readers") == 0


@check("compaction")
def _(played: Played) -> None:
    look = played.end()
    log = leader_log(look, "prices")
    assert log["count"] < 21 == log["end"]
    assert look["verdict"]["compacted"]["count"] > 0
    latest = {each["key"]: each["value"] for each in log["records"]}
    assert latest == {"tea": "last 1", "milk": "last 2", "salt": "last 3"}
    assert set(handled(look, "cache")) >= set(latest.values())
