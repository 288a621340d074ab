"""TxnOffsetCommit (28), versions 0-5: offsets that count once the producer's transaction is committed.

2 leader epoch · 3 flexible, group member and generation · 4 abortable errors · 5 transactions v2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.api import Api, Call, Outcome
from millpond.broker.asking import ask
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.TxnOffsetCommitRequest) -> Outcome:
    return ask(broker.groups, call, request.group_id, request, lambda code: _failed(request, code))


def _failed(request: m.TxnOffsetCommitRequest, code: ErrorCode) -> m.TxnOffsetCommitResponse:
    return m.TxnOffsetCommitResponse(
        topics=[
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(key=28, name="TxnOffsetCommit", versions=(0, 5), handle=handle, lists="topics")
