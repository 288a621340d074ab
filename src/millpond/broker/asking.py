"""How an API handler asks a coordinator: one question to one home, or many gathered into one reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millpond.base.errors import Refused
from millpond.broker.api import Call, Outcome, Response
from millpond.broker.coordination import Coordination, Writing
from millpond.broker.wait import Wait
from millpond.coordinators.shard import Request
from millpond.wire.messages import Message

A = TypeVar("A")

Fail = Callable[[Request, Refused], Any]
"""The answer that a request has for a refusal."""


class Asker:
    """Waits for one answer of a coordinator; one that cannot answer gives an error code instead."""

    __slots__ = ("_fail", "request", "wait")

    def __init__(self, call: Call, body: Message, fail: Fail) -> None:
        self.wait: Wait[Any] = Wait()
        self.request = Request(body, call.version, self, call.client_id or "", call.client_host)
        self._fail = fail

    def finish(self, answer: Any) -> None:
        self.wait.finish(answer)

    def fail(self, refused: Refused) -> None:
        self.wait.finish(self._fail(self.request, refused))


def ask(
    coordination: Coordination[Any], call: Call, key: str, body: Message, fail: Fail, writing: Writing | None = None
) -> Wait[Any]:
    """Put a request to the shard that is responsible for `key`; what it writes may be part of a transaction."""
    asker = Asker(call, body, fail)
    try:
        home = coordination.home_of(key)
    except Refused as refused:
        asker.fail(refused)
        return asker.wait
    home.run(lambda shard, now_ms: shard.step(asker.request, now_ms), writing)
    return asker.wait


def collect(waits: Sequence[Wait[A]], then: Callable[[list[A]], None]) -> None:
    """Go on once every part has been answered; the parts keep their order."""
    parts: dict[int, A] = {}
    if not waits:
        then([])

    def taker(place: int) -> Callable[[A], None]:
        def take(answer: A) -> None:
            parts[place] = answer
            if len(parts) == len(waits):
                then([parts[each] for each in range(len(waits))])

        return take

    for place, wait in enumerate(waits):
        wait.then(taker(place))


def gather(waits: Sequence[Wait[A]], combine: Callable[[list[A]], Response]) -> Outcome:
    """One reply of many parts."""
    whole: Wait[Response] = Wait()
    collect(waits, lambda parts: whole.finish(combine(parts)))
    return whole
