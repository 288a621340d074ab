"""InitProducerId (22), versions 0-5: a producer id for idempotent writes, or the start of a transactional producer.

2 flexible · 3 the producer's current id and epoch, to raise the epoch · 4 PRODUCER_FENCED · 5 transactions v2. With a
transactional id the coordinator fences every earlier producer of that id and aborts its open transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_PRODUCER_ID
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened
from millpond.broker.coordinator_calls.transaction_calls import ask_transaction
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext


def handle(
    data: DataContext, coordination: CoordinationContext, call: Call, request: m.InitProducerIdRequest
) -> Outcome:
    if request.transactional_id is not None:
        return _transactional(data, coordination, call, request, request.transactional_id)
    # Without a transactional id nothing is fenced: a fresh id is always a correct answer, as in Kafka.
    fresh = data.producer_ids.next()
    return fresh.map(lambda producer_id: _answer(ErrorCode.NONE, producer_id, epoch=0)).recover(
        Refused, lambda refused: _answer(_without_id(refused))
    )


def _without_id(refused: Refused) -> ErrorCode:
    """No id can be allocated without a controller; clients retry after this code, which Kafka uses, too."""
    is_storage = refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    return refused.code if is_storage else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _transactional(
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.InitProducerIdRequest,
    transactional_id: str,
) -> Outcome:
    return data.producer_ids.have_one().chain(
        lambda _: ask_transaction(
            coordination, call, transactional_id, request, lambda refused: _answer(refused.code)
        )
    )


def _answer(error: ErrorCode, producer_id: int = NO_PRODUCER_ID, epoch: int = -1) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=epoch)


def _screen(metadata: MetadataContext, call: Call, request: m.InitProducerIdRequest) -> Screened | None:
    """Without a transactional id, the right to write to any topic allows idempotent writes."""
    if request.transactional_id is not None:
        if call.demand(*NEEDS[0], request.transactional_id):
            return None
        return Screened(None, _answer(NEEDS[0].refusal))
    if call.may_any(Operation.WRITE, AclResource.TOPIC) or call.demand(*NEEDS[1], CLUSTER_NAME):
        return None
    return Screened(None, _answer(NEEDS[1].refusal))


NEEDS = (
    Need(Operation.WRITE, AclResource.TRANSACTIONAL_ID),
    Need(Operation.IDEMPOTENT_WRITE, AclResource.CLUSTER),
)

API = Api(key=22, name="InitProducerId", versions=(0, 5), handle=handle, rights=Rights(NEEDS, _screen))
