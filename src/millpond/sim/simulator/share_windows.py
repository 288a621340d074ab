"""Share windows for a snapshot: which records of a partition are out with whom, read from the leader's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.sessions import member_of
from millpond.broker.shares.slots import Slot
from millpond.broker.shares.window import ShareWindow
from millpond.coordinators.shares.state_batches import TERMINAL, RecordState
from millpond.metadata.image import Image
from millpond.sim.simulator.ledger import SentRecord
from millpond.sim.simulator.simulation import Simulation

CELLS_SHOWN: Final = 40
"""Records shown of each window, from its start on."""


class LedWindow(NamedTuple):
    """A window and what else its leader knows."""

    window: ShareWindow
    high_watermark: int
    now_ms: int


def window_of(simulation: Simulation, image: Image | None, group: str, topic: str, index: int) -> LedWindow | None:
    """None while no leader has loaded the window."""
    partition = None if image is None else image.partition(topic, index)
    if image is None or partition is None:
        return None
    node = simulation.cluster.nodes.get(partition.leader)
    if node is None or not node.is_up:
        return None
    reads = node.broker.contexts.data.shares().known(group)
    leader = None if reads is None else reads.leaders.get((image.topics[topic].id, index))
    if leader is None or leader.window is None:
        return None
    return LedWindow(leader.window, int(leader.partition.committed_offset), node.broker.clock.monotonic_ms())


def window_shapes(simulation: Simulation, image: Image | None, group: str) -> list[dict[str, Any]]:
    """The windows of a share group as JSON, by topic and partition."""
    workers = [each for each in simulation.share_consumers.values() if each.plan.group == group]
    names = {each.member.membership.member_id: each.name for each in workers}
    shapes = []
    for topic in sorted({each.plan.topic for each in workers}):
        for index in range(simulation.partition_count(topic)):
            found = window_of(simulation, image, group, topic, index)
            if found is not None:
                shapes.append({"topic": topic, "partition": index, **_shape(found, names)})
    return shapes


def _shape(led: LedWindow, names: dict[str, str]) -> dict[str, Any]:
    window, high_watermark, now_ms = led
    counts = window.counts()
    return {
        "start": window.start_offset,
        "end": max(high_watermark, window.end_offset),
        "available": counts.available + max(high_watermark - window.end_offset, 0),
        "acquired": counts.acquired,
        "cells": [_cell(offset, slot, now_ms, names) for offset, slot in _slots(window, high_watermark)],
    }


def _slots(window: ShareWindow, high_watermark: int) -> Iterator[tuple[int, Slot | None]]:
    """Record by record; None is one that no member has received yet."""
    last = window.start_offset + CELLS_SHOWN - 1
    for first, end, slot in window.slots(window.start_offset, last):
        for offset in range(first, end + 1):
            yield offset, slot
    for offset in range(window.end_offset, min(high_watermark - 1, last) + 1):
        yield offset, None


def _cell(offset: int, slot: Slot | None, now_ms: int, names: dict[str, str]) -> dict[str, Any]:
    state = RecordState.AVAILABLE if slot is None else slot.state
    cell: dict[str, Any] = {
        "offset": offset,
        "state": state.name.lower(),
        "deliveries": 0 if slot is None else slot.deliveries,
        "holder": None,
        "lock_left_ms": None,
    }
    if slot is not None and slot.lock is not None:
        member_id = member_of(slot.lock.member_id)
        cell |= {"holder": names.get(member_id, member_id), "lock_left_ms": max(slot.lock.deadline_ms - now_ms, 0)}
    return cell


def given_up(simulation: Simulation, image: Image | None, group: str) -> list[SentRecord]:
    """Records that members received and none accepted, and that no member will receive again."""
    delivered = simulation.ledger.delivered.get(group, Counter())
    effects = simulation.ledger.effects.get(group, Counter())
    found = []
    for record_id in delivered:
        record = simulation.ledger.records.get(record_id)
        if record is None or effects[record_id]:
            continue
        led = window_of(simulation, image, group, record.topic, record.partition)
        if led is not None and _is_finished(led.window, record.offset):
            found.append(record)
    return found


def _is_finished(window: ShareWindow, offset: int) -> bool:
    if offset < window.start_offset:
        return True
    return any(slot.state in TERMINAL and slot.change is None for _, _, slot in window.slots(offset, offset))
