"""What every fetch needs of the node that serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.values import dataclass

if TYPE_CHECKING:
    from millpond.base.errors import ErrorCode
    from millpond.base.ids import NodeId
    from millpond.base.ports import Clock, Entropy, Workers
    from millpond.base.settings import Settings
    from millpond.broker.fetch.consumer_sessions import FetchSessions
    from millpond.broker.fetch.pending_fetches import PendingFetches
    from millpond.broker.replication.partitions import Partitions
    from millpond.broker.requests.request_counts import RequestCounts
    from millpond.broker.security.access import Access
    from millpond.metadata.image import Image


@dataclass(frozen=True, slots=True)
class FetchSource:
    node_id: NodeId
    clock: Clock
    workers: Workers
    entropy: Entropy
    settings: Callable[[], Settings]
    access: Access
    image: Image
    requests: RequestCounts
    partitions: Partitions
    absence: Callable[[str | UUID, int], ErrorCode]
    """Why a partition is not open here."""
    sessions: FetchSessions
    pending: PendingFetches
