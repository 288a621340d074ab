"""TxnOffsetCommit (28), versions 0-5: offsets that count once the producer's transaction is committed.

2 leader epoch · 3 flexible, group member and generation · 4 abortable errors · 5 transactions v2: the group joins the
transaction by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.transaction_calls import commit_offsets
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.TxnOffsetCommitRequest) -> Outcome:
    return commit_offsets(broker, call, request)


API = Api(key=28, name="TxnOffsetCommit", versions=(0, 5), handle=handle, lists="topics")
