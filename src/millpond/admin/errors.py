"""Why something that was asked of a cluster is not done, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.remote.errors import ClientError


class Refused(ClientError):
    """What was asked cannot be done, or should not; nothing was changed."""


class NotDeadLetters(Refused):
    """The topic is not one that holds dead letters."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that was probably meant, if there is one."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."


def unknown_topic(topic: str, known: Iterable[str], *, to_create: bool = True) -> Refused:
    near = nearest(topic, known)
    hint = f"; create it with `millpond topic create {topic}`." if near == "." and to_create else near
    return Refused(f"There is no topic {topic}{hint}")


def unknown_partition(topic: str, index: int, count: int) -> Refused:
    return Refused(f"{topic} has no partition {index}: they go from 0 to {count - 1}.")
