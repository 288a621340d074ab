"""A worker that kills itself, hard, at a chosen moment; once: the second run with the same `mark` lives.

Told by words `name=value`: bootstrap, topic, group, delivery, effects (a file that gets a line for each effect), kill
(the moment), at (the value of the record it happens at), mark (a file that remembers the crash), idle_s, instance,
store (sqlite:path or a Redis address), out (a topic for what is sent).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer as RawProducer

from millpond import Message, RedisIds, Retry, Send, SqliteIds, Worker
from millpond.client import committers, engine, transactions

TOLD = dict(word.split("=", 1) for word in sys.argv[1:])
MARK = Path(TOLD.get("mark", "/nonexistent/mark"))
AT = int(TOLD.get("at", "-1"))
EFFECTS = os.open(TOLD["effects"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def die(moment: str) -> None:
    if TOLD.get("kill") == moment and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def effect(value: int) -> None:
    os.write(EFFECTS, b"%d\n" % value)


def handle(message: Message) -> Send | None:
    value = int(message.value or b"-1")
    if value == AT:
        die("before_effect")
    time.sleep(float(TOLD.get("work_s", "0")))
    effect(value)
    if value == AT:
        die("after_effect")
    return Send(TOLD["out"], message.value, message.key) if "out" in TOLD else None


def handle_in_store(message: Message, unit: Any) -> None:
    """The effect is in the same store as the processed ids."""
    value = int(message.value or b"-1")
    if TOLD["store"].startswith("sqlite:"):
        unit.execute("CREATE TABLE IF NOT EXISTS effects (value INTEGER)")
        unit.execute("INSERT INTO effects VALUES (?)", (value,))
    else:
        unit.incr(f"{TOLD['topic']}:effect:{value}")
    if value == AT:
        die("after_effect")


def reached(position: int) -> bool:
    return position > AT


class DyingRaw:
    """A producer of librdkafka that dies around a commit."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._raw = RawProducer(*given, **named)
        self._sent: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __len__(self) -> int:
        return len(self._raw)

    def produce(self, topic: str, value: bytes, *given: Any, **named: Any) -> None:
        self._sent.add(int(value))
        self._raw.produce(topic, value, *given, **named)

    def commit_transaction(self, timeout: float) -> None:
        if AT in self._sent:
            self._raw.flush(60)
            die("before_commit")
        self._raw.commit_transaction(timeout)
        if AT in self._sent:
            die("after_commit")


def around_commit(commit: Any) -> Any:
    def dying(consumer: Any, positions: Any) -> bool:
        # One partition, values as offsets.
        if any(reached(at) for at in positions.values()):
            die("before_commit")
        done: bool = commit(consumer, positions)
        if any(reached(at) for at in positions.values()):
            die("after_commit")
        return done

    return dying


def main() -> None:
    transactions.RawProducer = DyingRaw  # type: ignore[assignment,misc]
    committers.commit = around_commit(committers.commit)
    assert engine.AtLeastOnce is committers.AtLeastOnce
    store: Any = None
    if "store" in TOLD:
        kind, _, path = TOLD["store"].partition(":")
        store = SqliteIds(path) if kind == "sqlite" else RedisIds(TOLD["store"], prefix=f"{TOLD['topic']}:")
    worker = Worker(
        handle if store is None else handle_in_store,
        TOLD["topic"],
        group=TOLD["group"],
        delivery=TOLD["delivery"],
        processed=store,
        retries=Retry(int(TOLD.get("tries", "1"))),
        commit_every_s=0.05,
        instance=TOLD.get("instance"),
        session_timeout_s=float(TOLD.get("session_s", "1")),
        transaction_timeout_s=2.0,
        in_flight_max=int(TOLD.get("in_flight_max", "20")),
    )
    idle_s = TOLD.get("idle_s")
    worker.run(TOLD["bootstrap"], until_idle_s=float(idle_s) if idle_s else None)


if __name__ == "__main__":
    main()
