"""Executes each forwarded change once, however often the forwarding node repeats it.

A node whose connection to the controller breaks sends the change again, because the first attempt may have been
lost. If it was not, the second would be refused because of the first: the user to delete no longer exists. So all
attempts have the same change id, and the controller keeps its responses for as long as another attempt can arrive.
A controller elected in between does not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millpond.base.later import Later
from millpond.broker.peers.controller_channel import FORWARD_MS_MAX, is_refused_by_follower
from millpond.broker.requests.replies import Outcome

if TYPE_CHECKING:
    from millpond.base.ports import Clock

RESPONSES_MAX: Final = 200
"""The oldest are dropped before their time. A response may have as many items as its request."""


class RepeatedChanges:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._responses: dict[str, tuple[int, Any]] = {}
        """The responses by change id, with the time at which they came; oldest first."""
        self._waiting: dict[str, list[Later[Any]]] = {}
        """The attempts at changes that have no response yet."""

    def once(self, change_id: str, execute: Callable[[], Outcome]) -> Outcome:
        """The response of the first attempt; `execute` is called if this is the first."""
        self._forget_old()
        if change_id in self._responses:
            response: Outcome = self._responses[change_id][1]
            return response
        if change_id in self._waiting:
            return self._wait(change_id)
        outcome = execute()
        if not isinstance(outcome, Later):
            self._keep(change_id, outcome)
            return outcome
        self._waiting[change_id] = []
        answer = self._wait(change_id)
        # A connection that breaks cancels only the answer to its own attempt.
        outcome.then(lambda response: self._end(change_id, response), lambda failure: self._fail(change_id, failure))
        return answer

    def _wait(self, change_id: str) -> Later[Any]:
        answer: Later[Any] = Later()
        self._waiting[change_id].append(answer)
        return answer

    def _end(self, change_id: str, response: Any) -> None:
        self._keep(change_id, response)
        for answer in self._waiting.pop(change_id):
            answer.finish(response)

    def _fail(self, change_id: str, failure: Exception) -> None:
        for answer in self._waiting.pop(change_id):
            answer.fail(failure)

    def _keep(self, change_id: str, response: Any) -> None:
        # A node that is not the controller has changed nothing, and may be the controller at the next attempt.
        if not is_refused_by_follower(response):
            self._responses[change_id] = self._clock.monotonic_ms(), response
            self._forget_old()

    def _forget_old(self) -> None:
        expired_ms = self._clock.monotonic_ms() - FORWARD_MS_MAX
        while self._responses:
            oldest = next(iter(self._responses))
            if len(self._responses) <= RESPONSES_MAX and self._responses[oldest][0] > expired_ms:
                return
            del self._responses[oldest]
