"""commitGroup: the offsets that a query has finished, committed as a group, so that group tools show its lag."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millpond.base.ids import TopicPartition
from millpond.client.cluster import offsets as cluster_offsets
from millpond.client.errors import ClientError

if TYPE_CHECKING:
    from millpond.client.cluster.cluster import Cluster

LOG = logging.getLogger("millpond.spark")


class GroupProgress:
    """Commits what changed since the last time. The checkpoint is the truth: a failing commit is only warned of."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._committed: dict[TopicPartition, int] = {}
        self._warned = ""

    def finished(self, cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> None:
        """Every record before `offsets` has been through the query."""
        changed = {place: offset for place, offset in offsets.items() if self._committed.get(place) != offset}
        if not changed:
            return
        try:
            cluster_offsets.commit_group(cluster, self.group, changed)
        except ClientError as fault:
            if str(fault) != self._warned:
                self._warned = str(fault)
                LOG.warning("the progress of the query is not shown as group %s: %s", self.group, fault)
            return
        self._warned = ""
        self._committed |= changed
