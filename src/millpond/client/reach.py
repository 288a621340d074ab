"""Whether a client reaches its cluster: one warning when it does not, and one more when it does again.

librdkafka says once that all brokers are down and then tries in silence. So whoever polls asks here, and a plain
connection to the addresses that failed tells whether anybody is there again.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from millpond.client.connection import LOG
from millpond.client.errors import ConfigError
from millpond.remote.bootstrap import addresses

PATIENCE_SECONDS: Final = 1.0
"""A node that is restarted is back in less: that is worth no word."""

PROBE_SECONDS: Final = 0.2
_ADDRESS: Final = re.compile(r"(?:\w+://)?(\S+:\d+)/")
"""How librdkafka begins what it says of one broker."""


class Reach:
    """What one client knows of its way to the cluster. Its methods are called by the thread that polls."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._bootstrap = str(settings.get("bootstrap.servers", ""))
        self._also: Callable[[KafkaError], None] | None = settings.get("error_cb")
        self._failed: set[str] = set()
        """Addresses that could not be connected to since the cluster was reached last."""
        self._reason = ""
        self._down_since: float | None = None
        self._look_at = 0.0
        self._is_told = False

    def on_error(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        if error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            named = _ADDRESS.match(error.str())
            if named is not None:
                self._failed.add(named[1])
            self._reason = error.str().rpartition(": ")[2] if named is not None else error.str()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()
            self._look_at = self._down_since + PATIENCE_SECONDS
        if self._also is not None:
            self._also(error)

    def down_seconds(self) -> float:
        """For how long nobody has been reached; 0 while somebody is."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def look(self) -> None:
        """Now and then, while it is down: whether it still is, and a word about that."""
        if self._down_since is None or time.monotonic() < self._look_at:
            return
        if any(_answers(address) for address in self._addresses()):
            if self._is_told:
                LOG.warning("%s is reached again, after %.0f s", self.where(), self.down_seconds())
            self._down_since, self._is_told = None, False
            self._failed.clear()
            return
        if not self._is_told:
            self._is_told = True
            LOG.warning("cannot reach %s (%s); it is tried again until it answers", self.where(), self.reason())
        self._look_at = time.monotonic() + PATIENCE_SECONDS

    def where(self) -> str:
        return ", ".join(sorted(self._failed)) or self._bootstrap

    def reason(self) -> str:
        return self._reason.split(" (after")[0] or "no broker answers"

    def _addresses(self) -> set[tuple[str, int]]:
        try:
            return set(addresses(",".join(self._failed) or self._bootstrap))
        except ConfigError:
            return set()


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, PROBE_SECONDS).close()
    except OSError:
        return False
    return True
