from millpond.base.errors import ErrorCode
from millpond.metadata.decision import OK
from millpond.metadata.producer_ids import PRODUCER_ID_MAX, ProducerIdBlock, decide_allocate_producer_ids
from millpond.metadata.records import ProducerIdsRecord


def test_each_block_begins_where_the_last_one_ended(image, apply) -> None:
    first = decide_allocate_producer_ids(image, 1, 0)
    assert first.reply == ProducerIdBlock(OK, 0, 1000)
    assert apply(image, first) == (ProducerIdsRecord(1, 0, 1000),)
    second = decide_allocate_producer_ids(image, 1, 0)
    assert second.reply == ProducerIdBlock(OK, 1000, 1000)
    assert second.records == (ProducerIdsRecord(1, 0, 2000),)


def test_only_a_registered_broker_of_this_life_is_given_one(image) -> None:
    for broker_id, epoch in ((1, 7), (2, 0)):
        decision = decide_allocate_producer_ids(image, broker_id, epoch)
        assert decision.records == ()
        assert decision.reply.verdict.code is ErrorCode.STALE_BROKER_EPOCH


def test_ids_can_run_out(image) -> None:
    image.replay(ProducerIdsRecord(1, 0, PRODUCER_ID_MAX - 999))
    decision = decide_allocate_producer_ids(image, 1, 0)
    assert decision.records == ()
    assert decision.reply.verdict.code is ErrorCode.UNKNOWN_SERVER_ERROR
