"""Share groups in a shard of all groups, with a share coordinator that does as it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.later import Later
from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition
from millpond.coordinators.groups.share.group import InitializeState, ShareGroup
from millpond.coordinators.shard import Effects
from millpond.wire import messages as m


class ShareGroupHarness:
    """Members of the share group `g`; `initializes` is whether delivery state that is ordered comes to exist."""

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator
        self.initializes = True
        self.orders: list[InitializeState] = []
        take = coordinator.take

        def take_orders(effects: Any, producer: Any = None) -> Any:
            take(effects, producer)
            for order in effects.orders:
                self.orders.append(order)
                if self.initializes:
                    self.finish(order)
            return effects

        coordinator.take = take_orders

    def finish(self, order: InitializeState, *, is_done: bool = True) -> None:
        now_ms = self.coordinator.now_ms
        self.coordinator.take(self.coordinator.shard.on_share_state(order, is_done=is_done, now_ms=now_ms))

    @property
    def group(self) -> ShareGroup:
        group = self.coordinator.shard.groups["g"]
        assert isinstance(group, ShareGroup)
        return group

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        topics: list[str] | None = None,
        *,
        group_id: str = "g",
        rack: str | None = None,
    ) -> Any:
        body = m.ShareGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topic_names=topics,
        )
        return self.coordinator.answer(self.coordinator.send(body, 1))

    def join(self, member_id: str, *topics: str) -> Any:
        """Join, and come back for the assignment, as a member does that is told to return soon."""
        joined = self.heartbeat(member_id, 0, list(topics))
        assert joined.error_code == 0, joined.error_message
        return self.heartbeat(member_id, joined.member_epoch, list(topics))

    def begin_deletion(self) -> Callable[..., None]:
        """Begin to delete the delivery state of all topics; what is returned ends that."""
        topic_ids, shard, now_ms = list(self.group.state.initialized), self.coordinator.shard, self.coordinator.now_ms
        effects = shard.begin_share_deletion("g", topic_ids, Later(), now_ms)
        assert [each.response for each in effects.replies] == [None]
        self.coordinator.take(Effects(records=effects.records))

        def end(*, is_done: bool) -> None:
            self.coordinator.take(shard.end_share_deletion("g", topic_ids, now_ms, is_done=is_done))

        return end

    def delete_state(self) -> None:
        self.begin_deletion()(is_done=True)

    def partitions_now(self, member_id: str) -> Partitions:
        return self.group.state.members[member_id].current.assigned

    def wait(self, duration_ms: int) -> None:
        """Let time pass and timers expire."""
        self.coordinator.now_ms += duration_ms
        self.coordinator.take(self.coordinator.shard.on_timer(self.coordinator.now_ms))

    def topics_changed(self, *names: str) -> None:
        shard = self.coordinator.shard
        self.coordinator.take(shard.on_topics_changed(names, self.coordinator.now_ms))
        self.coordinator.take(shard.on_timer(self.coordinator.now_ms))

    def partitions(self, **numbers: Any) -> Partitions:
        topics = self.coordinator.image.topics
        return frozenset(TopicIdPartition(topics[name].id, each) for name, part in numbers.items() for each in part)


def partitions_of(response: Any) -> Partitions | None:
    """What a heartbeat assigns; None if it does not say."""
    if response.assignment is None:
        return None
    return frozenset(
        TopicIdPartition(topic.topic_id, number)
        for topic in response.assignment.topic_partitions
        for number in topic.partitions
    )


@pytest.fixture
def harness(coordinator: Any) -> ShareGroupHarness:
    return ShareGroupHarness(coordinator)


@pytest.fixture
def in_reply() -> Callable[[Any], Partitions | None]:
    return partitions_of
