"""The way of every change of metadata: decide, commit, then answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from millpond.base.errors import Refused
from millpond.broker.api import Response
from millpond.broker.wait import Wait
from millpond.metadata.decision import Decision
from millpond.metadata.image import Image

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

R = TypeVar("R")


def commit(
    broker: Broker,
    decide: Callable[[Image], Decision[R]],
    answer: Callable[[R], Response],
    refuse: Callable[[Refused], Response],
) -> Wait[Response]:
    """A reply that waits until the decision survives; `refuse` answers when the metadata log cannot take it."""
    wait: Wait[Response] = Wait()
    broker.controller.submit(
        decide, lambda reply: wait.finish(answer(reply)), lambda refused: wait.finish(refuse(refused))
    )
    return wait
