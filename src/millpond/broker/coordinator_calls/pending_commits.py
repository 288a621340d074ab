"""A small OffsetCommit whose record is written and whose encoded reply waits for the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import Refused
from millpond.base.pending import Pending
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


class PendingCommit(Pending[bytes]):
    __slots__ = ("_arrived_us", "_connection", "_node", "_request", "_slot", "ended")

    def __init__(self, node: NodeContext, connection: Connection, request: ShortCommit) -> None:
        self.ended = False
        self._node = node
        self._connection = connection
        self._request = request
        self._arrived_us = connection.arrived_us
        self._slot: Slot | None = None

    def wait(self) -> None:
        """Reserve its place among the replies of the connection, unless it has been answered already."""
        if not self.ended:
            self._slot = self._connection.keep_slot(self)

    def finish(self, reply: bytes) -> None:
        if self.ended:
            return
        self.ended = True
        self._node.requests.on_answer(OFFSET_COMMIT, self._arrived_us)
        self._send([reply])

    def fail(self, failure: Exception) -> None:
        if self.ended:
            return
        self.ended = True
        if not isinstance(failure, Refused):
            raise failure
        request = self._request
        kind = m.OffsetCommitRequest
        partition = kind.OffsetCommitRequestPartition(
            partition_index=request.partition,
            committed_offset=request.offset,
            committed_leader_epoch=request.leader_epoch,
            committed_metadata=request.metadata,
        )
        body = kind(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation,
            member_id=request.member_id,
            topics=[kind.OffsetCommitRequestTopic(name=request.topic, partitions=[partition])],
        )
        response = refuse_group(Call(self._connection, request.version, request.client_id), body, failure)
        self._node.requests.on_answer(OFFSET_COMMIT, self._arrived_us, response)
        header = RequestHeader(OFFSET_COMMIT, request.version, request.correlation_id, request.client_id, 0)
        self._send(encode_reply(header, response))

    def cancel(self) -> None:
        self.ended = True

    def _send(self, parts: list[ReplyPart]) -> None:
        if self._slot is None:
            self._connection.reply_parts(parts)
        else:
            self._connection.fill(self._slot, parts)
