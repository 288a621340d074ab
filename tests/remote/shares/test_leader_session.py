"""The share session with one leader, as a play: requests out, responses in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.errors import ClientError, LockExpired
from millpond.remote.shares.held_record import Acknowledgement, HeldRecord, PartitionKey, Verdict
from millpond.remote.shares.leader_session import LeaderSession, Outcome
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

TOPIC = UUID(int=7)
KEY: PartitionKey = (TOPIC, 0)
OTHER: PartitionKey = (TOPIC, 1)
LOCK_MS = 30_000


def names(*keys: PartitionKey) -> dict[PartitionKey, TopicPartition]:
    return {each: TopicPartition("jobs", each[1]) for each in keys}


def session_of(*keys: PartitionKey, renews: bool = True) -> LeaderSession:
    session = LeaderSession(1, "g", "m", renews=renews)
    session.want(names(*keys or (KEY,)))
    return session


def ask(session: LeaderSession, records_max: int = 10) -> Any:
    return session.next_request(records_max=records_max, wait_ms=500, bytes_max=1 << 20, version=2)


def partitions(request: Any) -> list[int]:
    return [each.partition_index for topic in request.topics for each in topic.partitions]


def fetched(*ranges: tuple[int, int, int], key: PartitionKey = KEY, **more: Any) -> m.ShareFetchResponse:
    kind = m.ShareFetchResponse
    data = b"".join(
        encode_batch([Record(each, 0, None, b"v") for each in range(first, last + 1)], base_offset=first)
        for first, last, _ in ranges
    )
    partition = kind.PartitionData(
        partition_index=key[1],
        records=data,
        acquired_records=[
            kind.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in ranges
        ],
        **more,
    )
    topic = kind.ShareFetchableTopicResponse(topic_id=key[0], partitions=[partition])
    return kind(acquisition_lock_timeout_ms=LOCK_MS, responses=[topic])


def acknowledged(code: int = 0, key: PartitionKey = KEY) -> m.ShareAcknowledgeResponse:
    kind = m.ShareAcknowledgeResponse
    partition = kind.PartitionData(partition_index=key[1], error_code=code)
    topic = kind.ShareAcknowledgeTopicResponse(topic_id=key[0], partitions=[partition])
    return kind(acquisition_lock_timeout_ms=LOCK_MS, responses=[topic])


def receive(session: LeaderSession, *ranges: tuple[int, int, int], now: float = 0.0) -> list[HeldRecord]:
    assert isinstance(ask(session), m.ShareFetchRequest)
    return session.on_fetch(fetched(*ranges), now).records


def say(session: LeaderSession, held: HeldRecord, verdict: Verdict) -> list[ClientError | None]:
    results: list[ClientError | None] = []
    session.acknowledge(Acknowledgement(held.record.offset, verdict, held, on_settled=results.append))
    return results


def settled(outcome: Outcome) -> list[tuple[int, type[Exception] | None]]:
    return [(each.offset, None if error is None else type(error)) for each, error in outcome.settled]


def test_partitions_are_named_once_and_epochs_count() -> None:
    session = session_of(KEY, OTHER)
    first = ask(session)
    assert (first.share_session_epoch, partitions(first), first.max_records) == (0, [0, 1], 10)
    session.on_fetch(fetched(), 0.0)
    second = ask(session)
    assert (second.share_session_epoch, partitions(second)) == (1, [])
    session.on_fetch(fetched(), 0.0)
    session.want(names(OTHER, (TOPIC, 2)))
    third = ask(session)
    assert partitions(third) == [2]
    assert [(each.topic_id, each.partitions) for each in third.forgotten_topics_data] == [(TOPIC, [0])]
    last = session.last_request()
    assert last is not None
    assert last.share_session_epoch == -1


def test_a_fetch_takes_acknowledgements_along() -> None:
    session = session_of()
    records = receive(session, (0, 2, 1))
    say(session, records[1], Verdict.ACCEPT)
    request = ask(session)
    assert isinstance(request, m.ShareFetchRequest)
    (batch,) = request.topics[0].partitions[0].acknowledgement_batches
    assert (batch.first_offset, batch.last_offset, batch.acknowledge_types) == (1, 1, [1])
    assert settled(session.on_fetch(fetched(), 0.0)) == [(1, None)]
    assert session.held_count == 2


def test_without_room_for_records_acknowledgements_go_alone() -> None:
    session = session_of()
    records = receive(session, (0, 0, 1))
    assert ask(session, 0) is None
    say(session, records[0], Verdict.REJECT)
    request = ask(session, 0)
    assert isinstance(request, m.ShareAcknowledgeRequest)
    assert not request.is_renew_ack
    assert settled(session.on_acknowledge(acknowledged(), 0.0)) == [(0, None)]


def test_acknowledgements_of_a_partition_given_up_do_not_fetch_it_again() -> None:
    session = session_of()
    records = receive(session, (0, 0, 1))
    session.want(names(OTHER))
    say(session, records[0], Verdict.ACCEPT)
    assert isinstance(ask(session), m.ShareAcknowledgeRequest)


def test_locks_are_renewed_in_time_and_only_while_there_is_no_verdict() -> None:
    session = session_of()
    first, second = receive(session, (0, 1, 1), now=100.0)
    assert first.locked_until == 130.0
    session.renew_due(101.0)
    assert ask(session, 0) is None
    say(session, second, Verdict.ACCEPT)
    session.renew_due(112.5)
    request = ask(session)
    assert isinstance(request, m.ShareAcknowledgeRequest), "a fetch that renews cannot fetch"
    assert request.is_renew_ack
    (batch,) = request.topics[0].partitions[0].acknowledgement_batches
    assert (batch.first_offset, batch.acknowledge_types) == (0, [Verdict.RENEW, Verdict.ACCEPT])
    session.on_acknowledge(acknowledged(), 112.5)
    assert first.locked_until == 142.5


def test_one_expired_lock_does_not_fail_the_others() -> None:
    session = session_of()
    records = receive(session, (0, 3, 1))
    for each in records:
        say(session, each, Verdict.ACCEPT)
    results: list[tuple[int, type[Exception] | None]] = []
    for _ in range(10):
        request = ask(session, 0)
        if request is None:
            break
        offsets = {
            offset
            for each in request.topics[0].partitions[0].acknowledgement_batches
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        code = ErrorCode.INVALID_RECORD_STATE if 2 in offsets else ErrorCode.NONE
        results += settled(session.on_acknowledge(acknowledged(code), 0.0))
    assert sorted(results, key=lambda each: each[0]) == [(0, None), (1, None), (2, LockExpired), (3, None)]
    assert records[2].loss is not None


def test_a_session_that_the_leader_forgot_is_opened_again_and_its_acknowledgements_repeated_once() -> None:
    session = session_of()
    records = receive(session, (0, 1, 1))
    say(session, records[0], Verdict.ACCEPT)
    assert ask(session, 0).share_session_epoch == 1
    refusal = m.ShareAcknowledgeResponse(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
    outcome = session.on_acknowledge(refusal, 0.0)
    assert not outcome.settled
    assert not outcome.is_paused
    opening = ask(session, 0)
    assert (opening.share_session_epoch, partitions(opening)) == (0, [0])
    session.on_fetch(fetched(), 0.0)
    assert isinstance(ask(session, 0), m.ShareAcknowledgeRequest)
    assert settled(session.on_acknowledge(refusal, 0.0)) == [(0, LockExpired)]


def test_a_record_delivered_again_settles_the_earlier_delivery() -> None:
    session = session_of()
    (earlier,) = receive(session, (0, 0, 1))
    ask(session)
    say(session, earlier, Verdict.ACCEPT)
    outcome = session.on_fetch(fetched((0, 0, 2)), 0.0)
    assert settled(outcome) == [(0, LockExpired)]
    assert [each.deliveries for each in outcome.records] == [2]
    assert outcome.records[0].loss is None
    assert earlier.loss is not None


def test_no_session_is_left_at_the_leader() -> None:
    session = session_of()
    ask(session)
    outcome = session.on_fetch(m.ShareFetchResponse(error_code=ErrorCode.SHARE_SESSION_LIMIT_REACHED), 0.0)
    assert outcome.is_paused
    assert outcome.failure is None
    assert "group.share.max.share.sessions" in outcome.warnings[0]
    assert ask(session).share_session_epoch == 0


def test_a_group_that_may_not_be_used_ends_the_consumer() -> None:
    session = session_of()
    ask(session)
    outcome = session.on_fetch(m.ShareFetchResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED), 0.0)
    assert outcome.failure is not None
    assert outcome.failure.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_partition_that_moved_loses_its_locks() -> None:
    session = session_of()
    records = receive(session, (0, 0, 1))
    say(session, records[0], Verdict.ACCEPT)
    ask(session)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    outcome = session.on_fetch(fetched(error_code=code, acknowledge_error_code=code), 0.0)
    assert outcome.is_stale
    assert outcome.is_paused
    assert settled(outcome) == [(0, LockExpired)]


def test_a_coordinator_that_moves_is_waited_for() -> None:
    session = session_of()
    records = receive(session, (0, 0, 1))
    say(session, records[0], Verdict.ACCEPT)
    ask(session, 0)
    outcome = session.on_acknowledge(acknowledged(ErrorCode.COORDINATOR_NOT_AVAILABLE), 0.0)
    assert outcome.is_paused
    assert not outcome.settled
    ask(session, 0)
    assert settled(session.on_acknowledge(acknowledged(), 0.0)) == [(0, None)]
    assert session.expire(1000.0) == []


def test_what_cannot_be_sent_before_its_lock_expires_fails() -> None:
    session = session_of()
    records = receive(session, (0, 0, 1), now=100.0)
    say(session, records[0], Verdict.ACCEPT)
    assert session.expire(130.5) == []
    assert [type(error) for _, error in session.expire(131.5)] == [LockExpired]
    assert session.unsent_count == 0


def test_a_broken_connection_ends_every_lock() -> None:
    session = session_of()
    records = receive(session, (0, 1, 1))
    say(session, records[0], Verdict.ACCEPT)
    ask(session)
    assert [type(error) for _, error in session.on_disconnect("cut")] == [LockExpired]
    assert [each.loss is not None for each in records] == [True, True]
    assert (session.is_open, session.held_count, session.unsent_count) == (False, 0, 0)
    assert partitions(ask(session)) == [0]


def test_a_group_without_renewals_is_noticed() -> None:
    session = session_of()
    (held,) = receive(session, (0, 0, 1), now=100.0)
    session.renew_due(115.0)
    ask(session, 0)
    outcome = session.on_acknowledge(acknowledged(ErrorCode.INVALID_REQUEST), 115.0)
    assert not session.may_renew
    assert "share.renew.acknowledge.enable" in outcome.warnings[0]
    assert held.loss is None
    assert session.renew_due(120.0) is None


def test_gaps_are_acknowledged_and_not_delivered() -> None:
    session = session_of()
    ask(session)
    kind = m.ShareFetchResponse
    response = fetched((0, 0, 1))
    partition = response.responses[0].partitions[0]
    partition.records = encode_batch([Record(0, 0, None, b"v")], base_offset=0, last_offset_delta=2)
    partition.acquired_records = [kind.AcquiredRecords(first_offset=0, last_offset=2, delivery_count=1)]
    assert [each.record.offset for each in session.on_fetch(response, 0.0).records] == [0]
    (batch,) = ask(session, 0).topics[0].partitions[0].acknowledgement_batches
    assert (batch.first_offset, batch.last_offset, batch.acknowledge_types) == (1, 2, [Verdict.GAP])
