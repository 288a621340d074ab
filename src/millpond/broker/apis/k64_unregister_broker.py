"""UnregisterBroker (64), version 0: remove a broker that is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.brokers import Registered, decide_unregister
from millpond.metadata.decision import Verdict
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.UnregisterBrokerRequest) -> Outcome:
    return (
        _unregister(node, metadata, request.broker_id)
        .recover(Refused, lambda refused: Registered(Verdict.of(refused)))
        .map(
            lambda reply: m.UnregisterBrokerResponse(
                error_code=reply.verdict.code, error_message=reply.verdict.message
            )
        )
    )


def _unregister(node: NodeContext, metadata: MetadataContext, broker_id: int) -> Later[Registered]:
    decided = metadata.controller.submit(lambda image: decide_unregister(image, node.layers, broker_id))
    return decided.chain(lambda reply: done(reply) if reply.is_done else _unregister(node, metadata, broker_id))


API = Api(
    key=64,
    name="UnregisterBroker",
    versions=(0, 0),
    handle=handle,
    at_controller=True,
    forward=relay_change,
    rights=on_cluster(Operation.ALTER),
)
