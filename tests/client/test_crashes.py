"""Every delivery under SIGKILL at the worst moments: duplicates and losses exactly where it allows them."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.node import eventually

RECORDS = 40
AT = 17


@pytest.fixture
def run(broker, child, tmp_path: Path) -> Callable[..., Counter[int]]:
    """Fill a topic, run a worker that dies at the moment, run it again until nothing is left; how often each ran."""

    def crash(delivery: str, kill: str, **more: Any) -> Counter[int]:
        topic = broker.topic(partitions=1)
        broker.fill(topic, [b"%d" % n for n in range(RECORDS)], keys=5)
        arguments = {
            "bootstrap": broker.bootstrap,
            "topic": topic,
            "group": broker.group(),
            "delivery": delivery,
            "effects": tmp_path / "effects",
            "mark": tmp_path / "mark",
            "kill": kill,
            "at": AT,
            "idle_s": 0.5,
            **{name: value.format(topic=topic) if isinstance(value, str) else value for name, value in more.items()},
        }
        assert child(**arguments).wait() == -signal.SIGKILL
        assert child(**arguments).wait() == 0
        return effects(tmp_path / "effects")

    return crash


def effects(path: Path) -> Counter[int]:
    return Counter(int(line) for line in path.read_text().split())


ALL_ONCE = Counter(range(RECORDS))


class TestAtLeastOnce:
    @pytest.mark.smoke
    def test_killed_between_processing_and_commit_a_record_runs_twice_and_none_is_lost(self, run) -> None:
        ran = run("at_least_once", "after_effect")
        assert set(ran) == set(range(RECORDS))
        assert ran[AT] == 2
        # What was not started before the crash cannot have run twice.
        assert all(ran[n] == 1 for n in range(AT + 1, RECORDS))

    def test_killed_after_the_commit_nothing_committed_runs_again(self, run) -> None:
        ran = run("at_least_once", "after_commit", in_flight_max=1)
        assert set(ran) == set(range(RECORDS))
        assert all(ran[n] == 1 for n in range(AT + 1)), "committed records ran again"

    def test_killed_just_before_the_commit_all_of_it_runs_again(self, run) -> None:
        ran = run("at_least_once", "before_commit")
        assert set(ran) == set(range(RECORDS))
        assert ran[AT] == 2


class TestAtMostOnce:
    def test_killed_between_commit_and_processing_the_record_is_lost_and_none_runs_twice(self, run) -> None:
        ran = run("at_most_once", "before_effect")
        assert ran[AT] == 0
        assert max(ran.values()) == 1
        assert set(range(AT)) <= set(ran)

    def test_killed_after_processing_none_runs_twice(self, run) -> None:
        ran = run("at_most_once", "after_effect")
        assert ran[AT] == 1
        assert max(ran.values()) == 1

    def test_killed_before_the_commit_nothing_is_lost(self, run) -> None:
        """The batch had not begun, so it is delivered whole."""
        assert run("at_most_once", "before_commit") == ALL_ONCE


class TestExactlyOnceByTransactions:
    @pytest.mark.parametrize(
        ("kill", "is_named"),
        [
            ("before_effect", True),
            ("after_effect", True),
            ("before_commit", True),
            ("before_commit", False),
            ("after_commit", True),
        ],
    )
    def test_what_is_sent_is_there_once_however_it_dies(self, broker, run, kill: str, is_named: bool) -> None:
        named = {"instance": f"worker-{kill}"} if is_named else {}
        out = broker.topic(partitions=1)
        # Without a name the transaction of the dead lasts until it times out, and holds its records back so long.
        ran = run("exactly_once", kill, out=out, idle_s=0.5 if named else 4, **named)
        sent = [int(message.value) for message in broker.read(out, RECORDS)]
        assert sorted(sent) == list(range(RECORDS))
        if kill != "after_commit":
            assert ran[AT] == (1 if kill == "before_effect" else 2), "the handler itself may run twice"


class TestExactlyOnceByProcessedIds:
    @pytest.mark.parametrize("kill", ["after_effect", "before_commit", "after_commit"])
    def test_effects_in_sqlite_happen_once(self, run, tmp_path: Path, kill: str) -> None:
        path = tmp_path / "store.db"
        run("exactly_once", kill, store=f"sqlite:{path}")
        with sqlite3.connect(path) as database:
            found = Counter(value for (value,) in database.execute("SELECT value FROM effects"))
        assert found == ALL_ONCE

    def test_effects_in_redis_happen_once(self, run, redis_url: str) -> None:
        redis = pytest.importorskip("redis")
        run("exactly_once", "before_commit", store=redis_url)
        client = redis.Redis.from_url(redis_url)
        counts = {key: int(client.get(key)) for key in client.scan_iter("*:effect:*")}
        assert len(counts) == RECORDS
        assert set(counts.values()) == {1}


@pytest.mark.smoke
def test_sigterm_finishes_what_runs_commits_and_leaves(broker, child, tmp_path: Path) -> None:
    topic = broker.topic(partitions=1)
    broker.fill(topic, [b"%d" % n for n in range(RECORDS)])
    arguments = {
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "group": broker.group(),
        "delivery": "at_least_once",
        "effects": tmp_path / "effects",
        # Long: a member that did not leave would block its successor.
        "session_s": 30,
    }
    first = child(**arguments, work_s=0.2)
    assert eventually(lambda: (tmp_path / "effects").exists() and len(effects(tmp_path / "effects")) >= 3)
    first.process.terminate()
    assert first.wait(60) == 0
    stopped_after = len(effects(tmp_path / "effects"))
    assert stopped_after < RECORDS
    assert child(**arguments, idle_s=0.5).wait() == 0
    assert effects(tmp_path / "effects") == ALL_ONCE
