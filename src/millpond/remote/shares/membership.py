"""A member of a share group as the coordinator knows it: epoch and assignment. No clock or sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.remote.errors import PASSING, Answered, ClientError
from millpond.remote.shares.held_record import PartitionKey
from millpond.wire import messages as m

_EPOCH_TO_JOIN: Final = 0
_EPOCH_TO_LEAVE: Final = -1

_FENCED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
"""The coordinator has removed the member: it joins again."""


class Membership:
    def __init__(self, group: str, member_id: str, topics: Sequence[str]) -> None:
        self._group = group
        self._member_id = member_id
        self._topics = list(topics)
        self._epoch = _EPOCH_TO_JOIN
        self.assignment: frozenset[PartitionKey] | None = None
        """None before the first one. Kept while the member joins again: a share session needs no membership."""
        self.heartbeat_seconds = 0.0

    @property
    def has_joined(self) -> bool:
        return self._epoch > _EPOCH_TO_JOIN

    def heartbeat(self) -> m.ShareGroupHeartbeatRequest:
        return m.ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=None if self.has_joined else self._topics,
        )

    def farewell(self) -> m.ShareGroupHeartbeatRequest | None:
        """Leaves the group; None for a member that has not joined."""
        if not self.has_joined:
            return None
        self._epoch = _EPOCH_TO_JOIN
        return m.ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=self._member_id, member_epoch=_EPOCH_TO_LEAVE
        )

    def on_response(self, response: m.ShareGroupHeartbeatResponse) -> ClientError | None:
        """None if the member is in the group; a retriable error if it should ask again; else the end."""
        code = response.error_code
        if code in _FENCED:
            self._epoch = _EPOCH_TO_JOIN
            return Answered(f"share group {self._group}", code, response.error_message)
        if code:
            return Answered(f"share group {self._group}", code, _explained(self._group, code, response.error_message))
        self._epoch = response.member_epoch
        self.heartbeat_seconds = response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self.assignment = frozenset(
                (each.topic_id, index) for each in response.assignment.topic_partitions for index in each.partitions
            )
        return None

    @staticmethod
    def is_worth_another_try(error: ClientError) -> bool:
        return error.code in _FENCED or error.code in PASSING or error.retriable


def _explained(group: str, code: int, message: str | None) -> str | None:
    match code:
        case ErrorCode.GROUP_MAX_SIZE_REACHED:
            return f"the group {group} is full: run fewer workers, or raise group.share.max.size"
        case ErrorCode.GROUP_ID_NOT_FOUND | ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return f"{group} is a consumer group: a queue needs another name"
        case _:
            return message
