"""Why something that was asked of a cluster is not done, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.base.names import nearest
from millpond.remote.errors import ClientError


class Refused(ClientError):
    """What was asked cannot be done, or should not; nothing was changed."""


class NotDeadLetters(Refused):
    """The topic is not one that holds dead letters."""


class Leaderless(Refused):
    """Nobody leads what would have to be read."""


def unknown(what: str, name: str, known: Iterable[str], otherwise: str) -> Refused:
    """There is no such thing: did you mean that one, or else this is what you can do."""
    near = nearest(name, known)
    return Refused(f"There is no {what} {name}" + (f"; {otherwise}." if near == "." and otherwise else near))


def unknown_topic(topic: str, known: Iterable[str], *, to_create: bool = True) -> Refused:
    return unknown("topic", topic, known, f"create it with `millpond topic create {topic}`" if to_create else "")


def unknown_partition(topic: str, index: int, count: int) -> Refused:
    return Refused(f"{topic} has no partition {index}: they go from 0 to {count - 1}.")
