"""Refusals: why a request was not carried out, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.base.names import nearest
from millpond.remote.errors import ClientError


class Refused(ClientError):
    """The request cannot be carried out, or should not be; nothing was changed."""


class NotDeadLetters(Refused):
    """The topic does not hold dead letters."""


class Leaderless(Refused):
    """A partition that would have to be read has no leader."""


def unknown(what: str, name: str, names: Iterable[str], otherwise: str) -> Refused:
    """Something does not exist; suggests the nearest name, or `otherwise`."""
    near = nearest(name, names)
    return Refused(f"There is no {what} {name}" + (f"; {otherwise}." if near == "." and otherwise else near))


def unknown_topic(topic: str, names: Iterable[str], *, to_create: bool = True) -> Refused:
    return unknown("topic", topic, names, f"create it with `millpond topic create {topic}`" if to_create else "")


def unknown_partition(topic: str, index: int, count: int) -> Refused:
    return Refused(f"{topic} has no partition {index}: it has 0 to {count - 1}.")
