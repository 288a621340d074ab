"""OffsetCommit (8), versions 2-10: how far a group has read.

5 no retention time · 6 leader epoch · 7 static members · 8 flexible · 9 member epochs of the new protocol ·
10 topic ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import both
from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import READ_GROUP, may_read_group, on_topics
from millpond.broker.coordinator_calls.pending_commits import OFFSET_COMMIT, PendingCommit
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m
from millpond.wire.kernel import short_commit

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, NodeContext, SecurityContext
    from millpond.broker.requests.connection import Connection

COMMITTED_AT_ONCE: Final = 500
"""This many offsets of one request are committed as one batch, which takes 5 to 10 ms of the loop. The offsets of
different partitions do not depend on each other; clients that must commit them together use a transaction."""


def commit_short(
    node: NodeContext,
    security: SecurityContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """Commits the offset of a single partition."""
    commit = short_commit(frame)
    if commit is None or not may_read_group(security, connection, commit.group_id):
        return False
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.READ, commit.topic):
        return False
    shard_host = coordination.groups.active_shard_host(commit.group_id)
    if shard_host is None:
        return False
    pending = PendingCommit(node, connection, commit)
    if not shard_host.attempt(
        lambda shard, now_ms: shard.commit_one(commit, pending, now_ms),
        pending,
        commit.client_id,
        "OffsetCommitRequest",
    ):
        return False
    pending.wait()
    return True


API = Api(
    key=OFFSET_COMMIT,
    name="OffsetCommit",
    versions=(2, 10),
    handle=handle_for_group,
    short=commit_short,
    lists="topics",
    at_once=COMMITTED_AT_ONCE,
    pieces=(way("topics.partitions", "topics.partitions", items=COMMITTED_AT_ONCE, one_by_one=True),),
    rights=both(
        READ_GROUP,
        on_topics(
            m.OffsetCommitResponse.OffsetCommitResponseTopic,
            m.OffsetCommitResponse.OffsetCommitResponsePartition,
            ids_from=10,
        ),
    ),
)
