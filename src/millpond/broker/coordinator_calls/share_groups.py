"""Share groups and their delivery state.

The group coordinator knows which state exists; the share coordinators keep it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed, gather
from millpond.broker.coordination.coordination import ShardHost
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state import NO_OFFSET

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext
    from millpond.coordinators.groups.consumer.members import TopicIdPartition
    from millpond.coordinators.groups.shard import GroupShard
    from millpond.coordinators.groups.share.group import InitializeState
    from millpond.coordinators.groups.share.state import Topics
    from millpond.coordinators.shard import Effects


def initialize_state(coordination: CoordinationContext, shard_host: ShardHost[GroupShard], order: Any) -> None:
    """Carry out the order of a group coordinator, and report to it which partitions have state now."""
    from millpond.coordinators.groups.share.group import InitializeState, ShareGroup

    assert isinstance(order, InitializeState), order
    if not isinstance(shard_host.shard.groups.get(order.group_id), ShareGroup):
        # It was deleted before the order was committed, and another may have its name.
        return
    # Later state replaces earlier state if its epoch is higher, and so does the epoch of the group rise.
    state_epoch = shard_host.shard.share_epoch(order.group_id)
    partitions = sorted(order.partitions)
    asked = [_initialized(coordination, order.group_id, each, state_epoch) for each in partitions]

    def report(are_done: list[bool]) -> None:
        for is_done in (True, False):
            some = [each for each, was_done in zip(partitions, are_done, strict=True) if was_done is is_done]
            # Otherwise the members' next heartbeats to the next coordinator repeat the order.
            if some and shard_host.is_active:
                part = InitializeState(order.group_id, frozenset(some))
                shard_host.run(partial(_report, part, is_done))

    gather(asked).then(report)


def _report(order: InitializeState, is_done: bool, shard: GroupShard, now_ms: int) -> Effects:
    return shard.on_share_state(order, is_done=is_done, now_ms=now_ms)


def _initialized(
    coordination: CoordinationContext, group_id: str, partition: TopicIdPartition, state_epoch: int
) -> Later[bool]:
    """Whether there is state now."""
    key = SharePartition(group_id, *partition)
    asked = coordination.share_state.initialize(key, state_epoch, NO_OFFSET)
    # A higher state epoch: there is later state already.
    return asked.map(lambda _: True).recover(Refused, lambda refused: refused.code is ErrorCode.FENCED_STATE_EPOCH)


def has_state(coordination: CoordinationContext, group_id: str) -> bool:
    """Whether it is a share group of this node with delivery state."""
    try:
        return bool(state_of(coordination, group_id))
    except Refused:
        return False


def state_of(coordination: CoordinationContext, group_id: str) -> Topics:
    """The topics of which a share group has delivery state; Refused if this node does not know."""
    return coordination.groups.shard_host_of(group_id).shard.share_topics(group_id)


def delete_state(
    coordination: CoordinationContext, group_id: str, topic_ids: Collection[UUID] | None = None
) -> Later[None]:
    """Delete the delivery state of these topics, or of all, of a share group without members; fails with Refused."""
    try:
        shard_host = coordination.groups.shard_host_of(group_id)
        topics = shard_host.shard.share_topics(group_id)
        shard_host.shard.check_no_share_members(group_id)
    except Refused as refused:
        return failed(refused)
    ids = [each for each in topics if topic_ids is None or each in topic_ids]
    keys = [SharePartition(group_id, each, number) for each in ids for number in sorted(topics[each].partitions)]
    noted: Later[Refused | None] = Later()
    # Without a way to cancel it: a client that hangs up does not leave it half done.
    result: Later[None] = Later()

    def delete(refused: Refused | None) -> None:
        if refused is not None:
            result.fail(refused)
            return
        asked = [coordination.share_state.delete(each).map(_deleted).recover(Refused, _same) for each in keys]
        gather(asked).then(end)

    def end(results: list[Refused | None]) -> None:
        failures = [each for each in results if each is not None]
        # A member that has joined meanwhile gets new state with its next heartbeat.
        if shard_host.is_active:
            shard_host.run(partial(_end_deletion, group_id, ids, is_done=not failures))
        if failures:
            result.fail(failures[0])
        else:
            result.finish(None)

    noted.then(delete, result.fail)
    shard_host.run(lambda shard, now_ms: shard.begin_share_deletion(group_id, ids, noted, now_ms))
    return result


def _end_deletion(
    group_id: str, topic_ids: Collection[UUID], shard: GroupShard, now_ms: int, *, is_done: bool
) -> Effects:
    return shard.end_share_deletion(group_id, topic_ids, now_ms, is_done=is_done)


def _deleted(_: None) -> Refused | None:
    return None


def _same(refused: Refused) -> Refused | None:
    return refused


def new_state_epoch(coordination: CoordinationContext, group_id: str) -> Later[int]:
    """A state epoch above all earlier ones, for a group without members; fails with Refused."""
    try:
        shard_host = coordination.groups.shard_host_of(group_id)
    except Refused as refused:
        return failed(refused)
    told: Later[int | Refused] = Later()
    shard_host.run(lambda shard, now_ms: shard.raise_share_epoch(group_id, told, now_ms))
    return told.map(_or_raise)


def _or_raise(told: int | Refused) -> int:
    if isinstance(told, Refused):
        raise told
    return told


def note_state(coordination: CoordinationContext, group_id: str, known: Collection[SharePartition]) -> None:
    """There is delivery state of these share partitions of the group."""
    from millpond.coordinators.groups.consumer.members import TopicIdPartition
    from millpond.coordinators.groups.share.group import InitializeState

    shard_host = coordination.groups.active_shard_host(group_id)
    if shard_host is not None and known:
        partitions = frozenset(TopicIdPartition(each.topic_id, each.partition) for each in known)
        shard_host.run(partial(_report, InitializeState(group_id, partitions), True))
