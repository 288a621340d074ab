"""One small OffsetCommit that is written and waits until that is committed: its reply is made already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import Refused
from millpond.broker.coordinator_calls.group_calls import refuse_group
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import encode_reply
from millpond.wire import messages as m
from millpond.wire.header import RequestHeader

if TYPE_CHECKING:
    from millpond.base.ports import ReplyPart
    from millpond.broker.context import NodeContext
    from millpond.broker.requests.connection import Connection, Slot
    from millpond.wire.kernel import ShortCommit

OFFSET_COMMIT: Final = 8


class PendingCommit:
    """Stands where a `Later` would: ended by its reply, by a refusal, or by the end of its connection."""

    __slots__ = ("_arrived_us", "_asked", "_connection", "_node", "_slot", "ended")

    def __init__(self, node: NodeContext, connection: Connection, asked: ShortCommit) -> None:
        self.ended = False
        self._node = node
        self._connection = connection
        self._asked = asked
        self._arrived_us = connection.arrived_us
        self._slot: Slot | None = None

    def wait(self) -> None:
        """It is written. Unless it has been answered, other requests of its connection are answered after it."""
        if not self.ended:
            self._slot = self._connection.keep_slot(self)

    def finish(self, reply: bytes) -> None:
        """It is committed."""
        if self.ended:
            return
        self.ended = True
        self._node.requests.on_answer(OFFSET_COMMIT, self._arrived_us)
        self._send([reply])

    def fail(self, failure: Exception) -> None:
        """It may not be committed: it is refused as any other."""
        if self.ended:
            return
        self.ended = True
        if not isinstance(failure, Refused):
            raise failure
        asked = self._asked
        kind = m.OffsetCommitRequest
        partition = kind.OffsetCommitRequestPartition(
            partition_index=asked.partition,
            committed_offset=asked.offset,
            committed_leader_epoch=asked.leader_epoch,
            committed_metadata=asked.metadata,
        )
        body = kind(
            group_id=asked.group_id,
            generation_id_or_member_epoch=asked.generation,
            member_id=asked.member_id,
            topics=[kind.OffsetCommitRequestTopic(name=asked.topic, partitions=[partition])],
        )
        response = refuse_group(Call(self._connection, asked.version, asked.client_id), body, failure)
        self._node.requests.on_answer(OFFSET_COMMIT, self._arrived_us, response)
        header = RequestHeader(OFFSET_COMMIT, asked.version, asked.correlation_id, asked.client_id, 0)
        self._send(encode_reply(header, response))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.ended = True

    def _send(self, parts: list[ReplyPart]) -> None:
        if self._slot is None:
            self._connection.reply_parts(parts)
        else:
            self._connection.fill(self._slot, parts)
