"""Log one warning when the cluster becomes unreachable, and one more when it is back.

librdkafka reports once that all brokers are down and then retries silently. So the polling thread calls `probe`,
which opens a plain connection to the addresses that failed.
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
"""A restarted node is back in less, which is not worth a warning."""

PROBE_SECONDS: Final = 0.2
_ADDRESS: Final = re.compile(r"(?:\w+://)?(\S+:\d+)/")
"""The start of librdkafka's errors about one broker."""


class Reachability:
    """Whether one client reaches its cluster. Called by the polling thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._bootstrap = str(settings.get("bootstrap.servers", ""))
        self._also: Callable[[KafkaError], None] | None = settings.get("error_cb")
        self._failed: set[str] = set()
        """Addresses that refused connections since the cluster was last reachable."""
        self._reason = ""
        self._down_since: float | None = None
        self._probe_at = 0.0
        self._has_warned = False

    def on_error(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        if error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            named = _ADDRESS.match(error.str())
            if named is not None:
                self._failed.add(named[1])
            self._reason = error.str().rpartition(": ")[2] if named is not None else error.str()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()
            self._probe_at = self._down_since + PATIENCE_SECONDS
        if self._also is not None:
            self._also(error)

    def down_seconds(self) -> float:
        """How long no broker has been reachable; 0 while one is."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def is_down_for(self, seconds: float) -> bool:
        """Whether the cluster has been unreachable for that long and still is: librdkafka reports no return."""
        if self._down_since is None or self.down_seconds() < seconds:
            return False
        self._probe_now()
        return self._down_since is not None

    def probe(self) -> None:
        """While the cluster is unreachable, check from time to time and log changes."""
        if self._down_since is not None and time.monotonic() >= self._probe_at:
            self._probe_now()

    def _probe_now(self) -> None:
        if any(_answers(address) for address in self._addresses()):
            if self._has_warned:
                LOG.warning("%s is reachable again after %.0f s", self.where(), self.down_seconds())
            self._down_since, self._has_warned = None, False
            self._failed.clear()
            return
        if not self._has_warned:
            self._has_warned = True
            LOG.warning("cannot reach %s (%s); retrying until it answers", self.where(), self.reason())
        self._probe_at = time.monotonic() + PATIENCE_SECONDS

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
