"""AllocateProducerIds (67), version 0: a broker asks the controller for the next block of producer ids.

Not advertised: for brokers only, and every call uses up ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import Verdict
from millpond.metadata.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.AllocateProducerIdsRequest) -> Outcome:
    block = metadata.controller.submit(
        lambda image: decide_allocate_producer_ids(image, request.broker_id, request.broker_epoch)
    )
    return block.recover(Refused, lambda refused: ProducerIdBlock(Verdict.of(refused))).map(_answer)


def _answer(block: ProducerIdBlock) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(
        error_code=block.verdict.code, producer_id_start=block.first, producer_id_len=block.count
    )


API = Api(
    key=67,
    name="AllocateProducerIds",
    versions=(0, 0),
    handle=handle,
    is_advertised=False,
    at_controller=True,
    rights=for_nodes(),
)
