"""TxnOffsetCommit (28), versions 0-5: offsets that count once the producer's transaction is committed.

2 leader epoch · 3 flexible, group member and generation · 4 abortable errors · 5 transactions v2: the group joins the
transaction by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.base.errors import Refused
from millpond.broker.api import Api, Call, Outcome
from millpond.broker.coordination import Producer, Writing
from millpond.broker.group_calls import ask_group, refuse_group
from millpond.broker.transaction_calls import NOTHING_NEEDED, ask_for_place
from millpond.broker.wait import Wait
from millpond.coordinators.shard import Request
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

IMPLICIT_FROM = 5


def handle(broker: Broker, call: Call, request: m.TxnOffsetCommitRequest) -> Outcome:
    producer = Producer(request.producer_id, request.producer_epoch)
    wait: Wait[Any] = Wait()

    def refuse(refused: Refused) -> None:
        wait.finish(refuse_group(Request(request, call.version, None), refused))

    def answered(answer: Any) -> None:
        if isinstance(answer, Refused):
            refuse(answer)
        else:
            writing = Writing(producer, None if answer is NOTHING_NEEDED else answer)
            ask_group(broker, call, request.group_id, request, writing).then(wait.finish)

    try:
        home = broker.groups.home_of(request.group_id)
    except Refused as refused:
        refuse(refused)
        return wait
    ask_for_place(
        broker, request.transactional_id, producer, home.partition, implicit=call.version >= IMPLICIT_FROM
    ).then(answered)
    return wait


API = Api(key=28, name="TxnOffsetCommit", versions=(0, 5), handle=handle, lists="topics")
