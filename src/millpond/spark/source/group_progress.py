"""commitGroup: commit a query's finished offsets as a group, so that group tools show its lag."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from millpond.base.ids import TopicPartition
from millpond.client.errors import ClientError
from millpond.remote import offsets as cluster_offsets
from millpond.remote.cluster import Cluster

LOG = logging.getLogger("millpond.spark")

COMMIT_MS_MAX: Final = 5_000
"""Short: the commit is for display only."""
PAUSE_SECONDS: Final = 10.0
"""The pause after a failed commit."""


class GroupProgress:
    """Commits changed offsets. The checkpoint is authoritative: a failed commit is only logged."""

    def __init__(self, group: str, settings: Mapping[str, str]) -> None:
        self.group = group
        patience_ms = min(COMMIT_MS_MAX, int(settings.get("default.api.timeout.ms", COMMIT_MS_MAX)))
        self._settings = {**settings, "default.api.timeout.ms": str(patience_ms)}
        self._connected: Cluster | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._warned = ""
        self._not_before = 0.0

    def finished(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The query has processed every record before `offsets`."""
        changed = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if not changed or time.monotonic() < self._not_before:
            return
        try:
            # Separate connections: an unreachable coordinator must not delay reads.
            self._connected = self._connected or Cluster(self._settings)
            cluster_offsets.commit_group(self._connected, self.group, changed)
        except ClientError as fault:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            if str(fault) != self._warned:
                self._warned = str(fault)
                LOG.warning("the progress of the query is not shown as group %s: %s", self.group, fault)
            return
        self._warned = ""
        self._committed |= changed

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
