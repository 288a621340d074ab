"""The interface of every result that is still to come, from a request's reply to the commit of a record."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """Ends once: with its value, with a failure, or cancelled because its reader is gone. Later calls do nothing.

    An ordinary base class: `isinstance` with a subclass of a `Protocol` runs Python code, which the request path
    cannot afford.
    """

    __slots__ = ()

    ended: bool

    def finish(self, value: T) -> None:
        """End with the value."""
        raise NotImplementedError

    def fail(self, failure: Exception) -> None:
        """End without a value."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End because the reader is gone; release whatever the wait holds."""
        raise NotImplementedError
