"""Clients as generators that send requests and sleep, and the runner that drives them on the virtual clock.

A runner can be frozen, like a process in a long pause: it gets what arrived meanwhile when it thaws.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from millpond.sim.clients.client import Client
from millpond.sim.world.clock import VirtualClock
from millpond.wire.messages import Message

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Send:
    """Send a request; the script continues with the response, or with None when it is lost."""

    client: Client
    request: Message
    version: int


@dataclass(slots=True, frozen=True)
class SendAll:
    """Send several requests at once; the script continues with the list of their responses."""

    client: Client
    requests: Sequence[Message]
    version: int


@dataclass(slots=True, frozen=True)
class Sleep:
    for_ms: int


Script: TypeAlias = Generator[Send | SendAll | Sleep, Any, T]


class ScriptRunner:
    """Runs one script. Its exceptions propagate to the caller of the clock."""

    def __init__(self, clock: VirtualClock, script: Script[None], on_over: Callable[[], None] | None = None) -> None:
        self.is_over = False
        self._clock = clock
        self._script = script
        self._on_over = on_over
        self._frozen = False
        self._held: tuple[Any] | None = None

    def start(self) -> None:
        self._clock.call_soon(lambda: self._go_on(None))

    def end(self) -> None:
        """Stop at once; a pending response is ignored."""
        self.is_over = True

    def freeze(self) -> None:
        self._frozen = True

    def thaw(self) -> None:
        self._frozen = False
        held, self._held = self._held, None
        if held is not None:
            self._clock.call_soon(lambda: self._go_on(held[0]))

    def _go_on(self, heard: Any) -> None:
        if self.is_over:
            return
        if self._frozen:
            self._held = (heard,)
            return
        try:
            step = self._script.send(heard)
        except StopIteration:
            self.is_over = True
            if self._on_over is not None:
                self._on_over()
            return
        match step:
            case Send(client, request, version):
                client.send(request, version, self._go_on)
            case SendAll():
                self._ask_all(step)
            case Sleep(for_ms):
                self._clock.call_later(for_ms, lambda: self._go_on(None))

    def _ask_all(self, step: SendAll) -> None:
        replies: list[Any] = [None] * len(step.requests)
        unanswered = set(range(len(replies)))

        def hear(number: int, reply: Any) -> None:
            replies[number] = reply
            unanswered.remove(number)
            if not unanswered:
                self._go_on(replies)

        for number, request in enumerate(step.requests):
            step.client.send(request, step.version, partial(hear, number))
