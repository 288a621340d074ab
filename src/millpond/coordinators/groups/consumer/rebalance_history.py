"""The rebalance history of a consumer group, in the same form as that of classic groups.

Here a rebalance lasts from the first epoch bump until every member has reached its target. Only partitions that moved
went unread, and at most for that long.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from millpond.base.ids import TopicPartition
from millpond.coordinators.groups.consumer.members import NO_PARTITIONS, Member, Partitions
from millpond.coordinators.groups.consumer.state import EMPTY, STABLE, GroupState
from millpond.coordinators.groups.history import DETAIL_LENGTH_MAX, Cause, History, Why, moves_between
from millpond.metadata.image import Image


class ConsumerGroupHistory(History):
    def note_member(self, why: Why, member: Member, now_ms: int, detail: str = "") -> None:
        metadata = member.metadata
        self.note(
            Cause(
                why,
                member.id,
                now_ms,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                detail[:DETAIL_LENGTH_MAX],
            )
        )

    def note_topics(self, now_ms: int) -> None:
        self.note(Cause(Why.TOPICS_CHANGED, "", now_ms))

    def retargeted(
        self, before: Mapping[str, Partitions], after: GroupState, assignor: str, image: Image, now_ms: int
    ) -> None:
        """Record a new target. Several in one rebalance add up."""
        self.generation_began(after.assignment_epoch, len(after.members), None, assignor)
        if self._open:
            given_up, taken_on = _changes(before, after.targets, image)
            moves = list(moves_between(given_up, taken_on))
            self._open.assigned_ms = now_ms
            self._set_moves(self._open, chain(self._open.moves, moves))
            self._open.moves_total += len(moves)

    def settled(self, state: GroupState, now_ms: int) -> None:
        """End the rebalance if all members have reached their targets."""
        if self._open and state.name in (STABLE, EMPTY):
            self.finished(now_ms)


def _changes(
    before: Mapping[str, Partitions], after: Mapping[str, Partitions], image: Image
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str]]:
    """The revoked and the newly assigned partitions by member. Nearly everything is unchanged."""
    given_up: dict[TopicPartition, str] = {}
    taken_on: dict[TopicPartition, str] = {}
    for member_id in before.keys() | after.keys():
        old, new = before.get(member_id, NO_PARTITIONS), after.get(member_id, NO_PARTITIONS)
        if old is not new:
            given_up.update(dict.fromkeys(_named(old - new, image), member_id))
            taken_on.update(dict.fromkeys(_named(new - old, image), member_id))
    return given_up, taken_on


def _named(partitions: Partitions, image: Image) -> list[TopicPartition]:
    topic_of = image.topics_by_id.get
    return [TopicPartition(topic.name, each[1]) for each in partitions if (topic := topic_of(each[0])) is not None]
