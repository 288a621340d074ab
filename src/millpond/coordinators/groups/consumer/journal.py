"""The group's memory of its rebalances, in the same shape as that of classic groups.

Here a rebalance lasts from the first change of the group's epoch until every member has reached its target. Only
partitions that moved went unread, and at most for that long.
"""

from __future__ import annotations

from millpond.base.ids import TopicPartition
from millpond.coordinators.groups.consumer.members import Member, Partitions
from millpond.coordinators.groups.consumer.state import EMPTY, STABLE, GroupState
from millpond.coordinators.groups.history import DETAIL_LENGTH_MAX, MOVES_MAX, Cause, History, Why, moves_between
from millpond.metadata.image import Image


class Journal(History):
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

    def retargeted(self, before: GroupState, after: GroupState, assignor: str, image: Image, now_ms: int) -> None:
        """A new target has been made. Several in one rebalance add up."""
        self.generation_began(after.assignment_epoch, len(after.members), None, assignor)
        if self._open:
            moves = list(moves_between(_readers(before.targets, image), _readers(after.targets, image)))
            self._open.assigned_ms = now_ms
            self._open.moves += moves[: MOVES_MAX - len(self._open.moves)]
            self._open.moves_total += len(moves)

    def settled(self, state: GroupState, now_ms: int) -> None:
        """Close the rebalance if the group has come to rest."""
        if self._open and state.name in (STABLE, EMPTY):
            self.finished(now_ms)


def _readers(targets: dict[str, Partitions], image: Image) -> dict[TopicPartition, str]:
    return {
        TopicPartition(image.topics_by_id[each.topic_id].name, each.partition): member_id
        for member_id, partitions in targets.items()
        for each in partitions
        if each.topic_id in image.topics_by_id
    }
