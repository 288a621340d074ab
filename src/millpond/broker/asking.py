"""How an API handler asks a coordinator: one question to one home, or many gathered into one reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.api import Call, Outcome, Response
from millpond.broker.wait import Wait
from millpond.coordinators.shard import Request
from millpond.wire.messages import Message

if TYPE_CHECKING:
    from millpond.broker.coordination import Coordination

A = TypeVar("A")


class Asker(Generic[A]):
    """Waits for one answer of a coordinator; a coordinator that cannot answer gives an error code instead."""

    __slots__ = ("_fail", "wait")

    def __init__(self, fail: Callable[[ErrorCode], A]) -> None:
        self.wait: Wait[A] = Wait()
        self._fail = fail

    def finish(self, answer: A) -> None:
        self.wait.finish(answer)

    def fail(self, code: ErrorCode) -> None:
        self.wait.finish(self._fail(code))


def ask(
    coordination: Coordination[Any], call: Call, key: str, body: Message, fail: Callable[[ErrorCode], A]
) -> Wait[A]:
    """Put a request to the shard that is responsible for `key`."""
    asker = Asker(fail)
    request = Request(body, call.version, asker, call.client_id or "", call.client_host)
    try:
        home = coordination.home_of(key)
    except Refused as refused:
        asker.fail(refused.code)
        return asker.wait
    home.run(lambda shard, now_ms: shard.step(request, now_ms))
    return asker.wait


def gather(waits: Sequence[Wait[A]], combine: Callable[[list[A]], Response]) -> Outcome:
    """One reply once every part has been answered; the parts keep their order."""
    if not waits:
        return combine([])
    whole: Wait[Response] = Wait()
    parts: dict[int, A] = {}

    def take(place: int, answer: A) -> None:
        parts[place] = answer
        if len(parts) == len(waits):
            whole.finish(combine([parts[each] for each in range(len(waits))]))

    for place, wait in enumerate(waits):
        wait.then(lambda answer, place=place: take(place, answer))  # type: ignore[misc]
    return whole
