"""The answers to ApiVersions, encoded. Each newcomer asks for one first of all, and it is long: those who come and go
by the thousand would have the loop write it thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from millpond.broker.requests.replies import Encoded
from millpond.wire import messages as m


class ApiAnswers:
    """Those of one broker."""

    def __init__(self) -> None:
        self._known: Final[dict[int, tuple[Hashable, Encoded]]] = {}
        """By version, with what it was made of."""

    def encoded(self, version: int, made_of: Hashable, make: Callable[[], m.ApiVersionsResponse]) -> Encoded:
        known = self._known.get(version)
        if known is None or known[0] != made_of:
            known = self._known[version] = made_of, Encoded(make().encode(version))
        return known[1]
