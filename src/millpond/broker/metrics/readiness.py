"""Readiness: the node is registered and unfenced, and its replicas are in sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.words import counted
from millpond.broker.loop.steps import Steps, in_slices

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext

REPLICAS_AT_ONCE: Final = 300


def unready_reason(node: NodeContext, metadata: MetadataContext, data: DataContext) -> Steps[str | None]:
    """A short reason why the node is not ready; None if it is."""
    if node.is_stopping:
        return "this node is stopping"
    if not metadata.lifecycle.knows_itself:
        return "this node is not registered with its cluster yet"
    if metadata.lifecycle.is_fenced:
        return "this node is fenced: the controller lets it lead nothing yet, or has not heard of it"
    if metadata.lifecycle.sessions_missed:
        return "this node has not been heard by the controller for a while"
    held = metadata.image.replica_count(node.node_id)
    replicas = list(data.partitions)
    if len(replicas) < held:
        return _some(held - len(replicas), held, "open")
    behind = 0
    for some in in_slices(replicas, REPLICAS_AT_ONCE):
        for replica in some:
            view = replica.view
            # A replica that a reassignment is adding may still be catching up.
            behind += view is not None and node.node_id not in (*view.isr, *view.adding_replicas)
        yield None
    if behind:
        return _some(behind, held, "in sync")
    return None


def _some(count: int, held: int, what: str) -> str:
    return f"{count:,} of {counted(held, 'replica')} of this node {'is' if count == 1 else 'are'} not {what}"
