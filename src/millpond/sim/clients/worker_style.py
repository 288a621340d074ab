"""How a transactional worker goes about its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class WorkerStyle:
    """What a seed decides about one worker."""

    is_v2: bool = True
    timeout_ms: int = 4_000
    pace_ms: int = 50
    abort_share: float = 0.1
    is_careless: bool = False
    """Goes on with its transaction although it has heard that its partitions are not its own any more."""
    is_hasty: bool = False
    """After an answer that leaves open what was written it gives up at once, keeps its epoch, and numbers what comes
    next as if nothing had arrived. So does librdkafka, which knows the first protocol only."""
    straggles: bool = True
    dawdles: bool = False
    """Takes its time before it ends a transaction."""
    pipelines: bool = False
    """Writes small batches to all partitions in several requests, without waiting for the answers in between."""
    is_orphan: bool = False
    """Begins one transaction and is never heard of again."""
