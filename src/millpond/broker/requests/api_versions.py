"""Cached replies to ApiVersions, which every new connection requests first and which is long to encode."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from millpond.broker.requests.replies import Encoded
from millpond.wire import messages as m


class ApiAnswers:
    def __init__(self) -> None:
        self._replies: Final[dict[int, tuple[Hashable, Encoded]]] = {}
        """By version, with the inputs that it was made from."""

    def encoded(self, version: int, inputs: Hashable, make: Callable[[], m.ApiVersionsResponse]) -> Encoded:
        cached = self._replies.get(version)
        if cached is None or cached[0] != inputs:
            cached = self._replies[version] = inputs, Encoded(make().encode(version))
        return cached[1]
