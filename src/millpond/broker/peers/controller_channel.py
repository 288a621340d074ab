"""Sends requests to the active controller: a local call when it is this node, over the network otherwise.

An attempt that reaches a node that is no longer the controller, or whose response is lost, is repeated until the
timeout. So a request may be served twice, as when a client retries after a lost response. All attempts at a change
have the same change id, by which a controller recognizes the second. `Attempts` reports repeated attempts to callers
that compare the response with the metadata: the controller may be another one by then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from millpond.base.errors import ErrorCode, Refused, RemoteError
from millpond.base.later import Later
from millpond.broker.peers.requester import RequestLost
from millpond.wire import model

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Entropy, Timer
    from millpond.wire.messages import Message

AGAIN_MS = 50
"""The delay before a retry, and the interval of checks that the node asked is still the controller."""

NO_NODE = -1

SHOWN_MS = 5_000
"""How long a response waits for this node's own image to catch up; a node further behind cannot serve its clients
anyway."""

FORWARD_MS_MIN = 1_000
FORWARD_MS_MAX = 30_000
"""Bounds on the timeout of a forwarded request, whatever timeout the client asked for."""


class Leadership(Protocol):
    """The controller, as far as this node knows."""

    @property
    def is_active(self) -> bool: ...

    @property
    def leader_id(self) -> int: ...


AskHere = Callable[["Message", int, str | None], Later[Any]]
"""Takes request, version and change id; this node's own handler responds."""

AskNode = Callable[[int, "Message", int, int, str | None], Later[Any]]
"""Takes node id, request, version, timeout in ms and change id; the response of that node, or RequestLost."""


class Attempts:
    """Reports to the caller on the attempts of one request."""

    __slots__ = ("is_repeated",)

    def __init__(self) -> None:
        self.is_repeated = False
        """The response is to a repeated attempt: an earlier one may have been carried out."""


class ControllerChannel:
    def __init__(
        self, clock: Clock, entropy: Entropy, leadership: Leadership, ask_here: AskHere, ask_node: AskNode
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._leadership = leadership
        self._ask_here = ask_here
        self._ask_node = ask_node

    def ask(
        self,
        request: Message,
        version: int,
        timeout_ms: int,
        here: Callable[[], Later[Any]] | None = None,
        attempts: Attempts | None = None,
        is_final: Callable[[Any], bool] = lambda _: True,
        is_change: bool = False,
    ) -> Later[Any]:
        """The controller's response. Refused when none came in this time: with NOT_CONTROLLER if no controller got
        the request, with REQUEST_TIMED_OUT if one did and may still execute it. `here` answers, should this
        node become the controller meanwhile, a client whose connection matters to the answer. A response that
        is not `is_final` is dropped, and the controller asked again."""
        change_id = self._entropy.uuid().hex if is_change and not self._leadership.is_active else None
        ask_here = partial(self._ask_here, request, version, change_id) if here is None else here
        asking = _Asking(
            self._clock,
            self._leadership,
            ask_here,
            self._ask_node,
            request,
            version,
            timeout_ms,
            attempts or Attempts(),
            is_final,
            change_id,
        )
        asking.attempt()
        return asking.answer


class _Asking:
    """One request, over all its attempts."""

    def __init__(
        self,
        clock: Clock,
        leadership: Leadership,
        ask_here: Callable[[], Later[Any]],
        ask_node: AskNode,
        request: Message,
        version: int,
        timeout_ms: int,
        attempts: Attempts,
        is_final: Callable[[Any], bool],
        change_id: str | None,
    ) -> None:
        self.answer: Later[Any] = Later(self._end)
        self._clock = clock
        self._leadership = leadership
        self._ask_here = ask_here
        self._ask_node = ask_node
        self._request = request
        self._version = version
        self._until_ms = clock.monotonic_ms() + timeout_ms
        self._attempts = attempts
        self._is_final = is_final
        self._change_id = change_id
        self._was_sent = False
        self._reply: Later[Any] | None = None
        self._timer: Timer | None = None

    def attempt(self) -> None:
        self._attempts.is_repeated = self._was_sent
        if self._leadership.is_active:
            try:
                reply = self._ask_here()
            except RemoteError as error:
                # On a retry no caller is on the stack that would close the client's connection.
                self.answer.fail(error)
            else:
                self._await(reply)
            return
        leader_id = self._leadership.leader_id
        if leader_id == NO_NODE:
            self._again()
            return
        left_ms = max(self._until_ms - self._clock.monotonic_ms(), 1)
        self._await(self._ask_node(leader_id, self._request, self._version, left_ms, self._change_id))
        self._look_later(leader_id)

    def _await(self, reply: Later[Any]) -> None:
        self._reply = reply
        reply.then(self._take, self._on_failure)

    def _take(self, response: Any) -> None:
        if is_refused_by_follower(response) or not self._is_final(response):
            # One that was deposed meanwhile does not know what becomes of what it has written.
            self._was_sent = True
            self._again()
        else:
            self.answer.finish(response)

    def _on_failure(self, failure: Exception) -> None:
        if isinstance(failure, RequestLost):
            self._was_sent = True
            self._again()
        else:
            self.answer.fail(failure)

    def _again(self) -> None:
        self._stop_try()
        if self._clock.monotonic_ms() + AGAIN_MS >= self._until_ms:
            self.answer.fail(_too_late() if self._was_sent else _no_controller())
        elif not self.answer.ended:
            self._timer = self._clock.call_later(AGAIN_MS, self.attempt)

    # A controller that is paused or partitioned away does not respond, and its connection stays open.

    def _look_later(self, leader_id: int) -> None:
        if self._reply is not None and not self._reply.ended:
            self._timer = self._clock.call_later(AGAIN_MS, lambda: self._look(leader_id))

    def _look(self, leader_id: int) -> None:
        if self._leadership.is_active or self._leadership.leader_id not in (leader_id, NO_NODE):
            self._was_sent = True
            self._stop_try()
            self.attempt()
        else:
            self._look_later(leader_id)

    def _stop_try(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._stop_try()


def _no_controller() -> Refused:
    return Refused(ErrorCode.NOT_CONTROLLER, "the cluster has no active controller at the moment")


def _too_late() -> Refused:
    return Refused(
        ErrorCode.REQUEST_TIMED_OUT,
        "the controller did not answer in time; it is not known whether the change was made",
    )


def forward_ms(request: Message) -> int:
    """How long the controller may take to respond to a client's request."""
    return max(FORWARD_MS_MIN, min(getattr(request, "timeout_ms", FORWARD_MS_MAX), FORWARD_MS_MAX))


def is_refused_by_follower(response: object) -> bool:
    """Whether any part of the response is NOT_CONTROLLER."""
    if isinstance(response, list):
        return any(is_refused_by_follower(each) for each in response)
    if not isinstance(response, model.Struct):
        return False
    if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
        return True
    return any(is_refused_by_follower(getattr(response, name)) for name in response._names)


def say_instead(response: Any, refused: Refused) -> None:
    """Replace every NOT_CONTROLLER in a response with this error."""
    if isinstance(response, list):
        for each in response:
            say_instead(each, refused)
        return
    names: tuple[str, ...] = response._names if isinstance(response, model.Struct) else ()
    for name in names:
        say_instead(getattr(response, name), refused)
    if "error_code" in names and response.error_code == ErrorCode.NOT_CONTROLLER:
        response.error_code = refused.code
        if "error_message" in names:
            response.error_message = refused.message
