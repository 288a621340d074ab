"""Producer ids, allocated to brokers in blocks, so that few producers cost a commit."""

from __future__ import annotations

from typing import Final

from millpond.base.errors import ErrorCode
from millpond.base.values import dataclass
from millpond.metadata.decision import OK, Decision, Verdict
from millpond.metadata.image import Image
from millpond.metadata.records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The ids from `first` on, `count` of them; none if the verdict is not OK."""

    verdict: Verdict
    first: int = 0
    count: int = 0


def decide_allocate_producer_ids(image: Image, broker_id: int, broker_epoch: int) -> Decision[ProducerIdBlock]:
    """Allocate the next block to this broker. Ids lost in a restart are never used again."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        verdict = Verdict(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered with epoch {broker_epoch}"
        )
        return Decision((), ProducerIdBlock(verdict))
    first = image.next_producer_id
    if first > PRODUCER_ID_MAX - BLOCK_SIZE:
        return Decision((), ProducerIdBlock(Verdict(ErrorCode.UNKNOWN_SERVER_ERROR, "no producer ids are left")))
    record = ProducerIdsRecord(broker_id, broker_epoch, first + BLOCK_SIZE)
    return Decision((record,), ProducerIdBlock(OK, first, BLOCK_SIZE))
