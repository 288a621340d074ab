"""The login state machine of one connection, as a transition table; pure, driven by `logins`.

A connection may re-authenticate at any time (KIP-368), as the same user and with the same mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from millpond.base.errors import RemoteError
from millpond.base.values import dataclass
from millpond.broker.security.mechanisms import AnswerLater, Authenticated, Conversation, LoginRefused

if TYPE_CHECKING:
    from millpond.base.ports import Timer


class IllegalLoginState(RemoteError):
    """A request that is illegal in this state. The client has not logged in, so it gets no response."""


class State(Enum):
    NEW = "nothing was said yet"
    GREETED = "the mechanism is chosen"
    CHECKING = "what was shown is being checked"
    IN = "logged in"
    OVER = "refused"


class Event(Enum):
    HANDSHAKE = "SaslHandshake"
    TOKEN = "SaslAuthenticate"
    CHECKED = "the check has ended"
    PASSED = "all was right"
    FAILED = "something was not"


ALLOWED: Final[Mapping[State, Mapping[Event, State]]] = {
    State.NEW: {Event.HANDSHAKE: State.GREETED, Event.FAILED: State.OVER},
    State.GREETED: {Event.TOKEN: State.CHECKING, Event.FAILED: State.OVER},
    State.CHECKING: {Event.CHECKED: State.GREETED, Event.PASSED: State.IN, Event.FAILED: State.OVER},
    State.IN: {Event.HANDSHAKE: State.GREETED, Event.FAILED: State.OVER},
    State.OVER: {},
}
assert ALLOWED.keys() == set(State)


@dataclass(slots=True)
class Login:
    """`mechanisms` are the listener's mechanisms by name, each with the factory of its conversation."""

    mechanisms: Mapping[str, Callable[[], Conversation]]
    state: State = State.NEW
    mechanism: str = ""
    is_raw: bool = False
    """Whether SASL tokens come without a request header, as before Kafka 1.0."""
    was: Authenticated | None = None
    """The principal of the last successful login."""
    began_ms: int = 0
    """When the last login began, on the monotonic clock."""
    expiry: Timer | None = None
    expires_ms: int | None = None
    """When the session ends, on the monotonic clock."""
    conversation: Conversation | None = None

    @property
    def takes_raw(self) -> bool:
        return self.is_raw and self.state in (State.GREETED, State.CHECKING)

    def _go(self, event: Event) -> None:
        after = ALLOWED[self.state].get(event)
        if after is None:
            raise IllegalLoginState(f"{event.value} where {self.state.value}")
        self.state = after

    def begin(self, mechanism: str, *, is_raw: bool) -> None:
        """Start with the chosen mechanism. LoginRefused if it is not enabled, or differs from the previous
        login's."""
        self._go(Event.HANDSHAKE)
        make = self.mechanisms.get(mechanism)
        if make is None:
            raise LoginRefused(f"the mechanism {mechanism[:32]!r} is not enabled")
        if self.was is not None and mechanism != self.mechanism:
            raise LoginRefused(f"the mechanism {mechanism} where {self.mechanism} was used before")
        self.mechanism, self.is_raw = mechanism, is_raw
        self.conversation = make()

    def hear(self, shown: bytes) -> AnswerLater:
        """Process a SASL token. LoginRefused if it is wrong."""
        self._go(Event.TOKEN)
        assert self.conversation is not None
        return self.conversation.answer(shown)

    def go_on(self) -> None:
        """The token was accepted, and the mechanism needs another round."""
        self._go(Event.CHECKED)

    def let_in(self, who: Authenticated) -> None:
        """Complete the login. LoginRefused if a re-authentication names another principal."""
        if self.was is not None and self.was.principal != who.principal:
            raise LoginRefused(f"{who.principal} where {self.was.principal} was logged in")
        self._go(Event.PASSED)
        self.was, self.conversation = who, None

    def give_up(self) -> None:
        self._go(Event.FAILED)
        self.conversation = None
        self.stop_clock()

    def stop_clock(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = self.expires_ms = None
