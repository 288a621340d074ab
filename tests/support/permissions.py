"""Permission to write in a transaction, from a coordinator that permits everything."""

from __future__ import annotations

from millpond.log.producers import ProducerStates, Verification


def permitted(
    producers: ProducerStates,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    now_ms: int,
    transactional_id: str = "tx",
) -> Verification:
    verification = producers.verification(transactional_id, producer_id, producer_epoch, sequence, now_ms)
    if not producers.is_permitted(verification):
        producers.permit(verification)
    return verification
