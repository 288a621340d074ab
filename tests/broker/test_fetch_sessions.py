"""Incremental fetch sessions (KIP-227) as transcripts: a request, what the broker reads, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.principal import Principal
from millpond.broker.fetch.consumer_sessions import EVICTION_MS, FetchContext, FetchSessions
from millpond.sim.world.entropy import SeededEntropy
from millpond.wire import messages as m

EPOCH_MAX = (1 << 31) - 1


def topic_id(name: str) -> UUID:
    return UUID(int=int.from_bytes(name.encode(), "big"))


class SessionCache:
    """One session cache. Partitions are named `a0`: topic a, partition 0."""

    def __init__(self, slots_max: int = 10) -> None:
        self.sessions = FetchSessions(slots_max, lambda: 100, SeededEntropy(1))
        self.now_ms = 0

    def fetch(
        self,
        session_id: int = 0,
        epoch: int = 0,
        wanted: Sequence[str] = (),
        forgotten: Sequence[str] = (),
        *,
        version: int = 12,
        offset: int = 0,
        owner: Principal | None = None,
    ) -> FetchContext:
        by_id = version >= 13
        request = m.FetchRequest(
            session_id=session_id,
            session_epoch=epoch,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic="" if by_id else name[0],
                    topic_id=topic_id(name[0]) if by_id else NO_TOPIC_ID,
                    partitions=[
                        m.FetchRequest.FetchPartition(
                            partition=int(name[1:]),
                            fetch_offset=offset,
                            partition_max_bytes=100 + offset,
                            current_leader_epoch=offset,
                        )
                    ],
                )
                for name in wanted
            ],
            forgotten_topics_data=[
                m.FetchRequest.ForgottenTopic(
                    topic="" if by_id else name[0],
                    topic_id=topic_id(name[0]) if by_id else NO_TOPIC_ID,
                    partitions=[int(name[1:])],
                )
                for name in forgotten
            ],
        )
        return self.sessions.context(request, version, self.now_ms, owner)

    def refusal(self, *args: Any, **options: Any) -> str:
        with pytest.raises(Refused) as refused:
            self.fetch(*args, **options)
        return refused.value.code.name


def read(context: FetchContext) -> list[str]:
    """The partitions that the broker reads."""
    return [f"{wanted.key[0]}{wanted.key[2]}" for wanted in context.partitions]


def told(context: FetchContext, high_watermark: int = 0, records: bytes = b"", error: int = 0, start: int = 0) -> str:
    """With this result for every partition, which of them does the response include?"""
    kept = []
    for wanted in list(context.partitions):
        reply = m.FetchResponse.PartitionData(
            partition_index=wanted.key[2],
            high_watermark=high_watermark,
            log_start_offset=start,
            error_code=error,
            records=records,
        )
        if context.must_send(wanted, reply):
            kept.append(f"{wanted.key[0]}{wanted.key[2]}")
    return " ".join(kept)


@pytest.fixture
def cache() -> SessionCache:
    return SessionCache()


def test_a_session_is_its_owners_and_to_others_it_does_not_exist(cache: SessionCache) -> None:
    alice, bob = Principal("User", "alice"), Principal("User", "bob")
    number = cache.fetch(0, 0, ["a0"], owner=alice).session_id
    assert cache.refusal(number, 1, owner=bob) == "FETCH_SESSION_ID_NOT_FOUND"
    assert cache.refusal(number, 7, owner=bob) == "FETCH_SESSION_ID_NOT_FOUND", "nor does its epoch show"
    assert cache.fetch(number, 0, ["b0"], owner=bob).session_id != number
    assert cache.fetch(number, -1, owner=bob).session_id == 0
    again = Principal("User", "alice", by_token=True)
    assert read(cache.fetch(number, 1, owner=again)) == ["a0"], "it goes on, by another login too"
    cache.fetch(number, -1, owner=alice)
    assert cache.refusal(number, 2, owner=alice) == "FETCH_SESSION_ID_NOT_FOUND"


# A session's lifecycle.


def test_the_first_request_opens_a_session_and_is_told_everything(cache: SessionCache) -> None:
    context = cache.fetch(0, 0, ["a0", "a1"])
    assert context.session_id > 0
    assert read(context) == ["a0", "a1"]
    assert told(context) == "a0 a1"


def test_the_next_requests_name_only_what_changes(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0", "a1"]).session_id
    assert read(cache.fetch(session, 1)) == ["a0", "a1"]
    assert read(cache.fetch(session, 2, ["b0"])) == ["a0", "a1", "b0"]
    assert read(cache.fetch(session, 3, [], ["a0", "b7"])) == ["a1", "b0"]
    moved = cache.fetch(session, 4, ["a1"], offset=9)
    assert read(moved) == ["a1", "b0"]
    wishes = [(wanted.fetch_offset, wanted.bytes_max, wanted.leader_epoch) for wanted in moved.partitions]
    assert wishes == [(9, 109, 9), (0, 100, 0)]


def test_a_partition_that_is_named_and_forgotten_at_once_is_forgotten(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    assert read(cache.fetch(session, 1, ["a1"], ["a1"])) == ["a0"]


def test_the_final_epoch_ends_the_session(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    last = cache.fetch(session, -1, ["a1"])
    assert (last.session_id, read(last), last.is_incremental) == (0, ["a1"], False)
    assert cache.refusal(session, 1) == "FETCH_SESSION_ID_NOT_FOUND"


def test_the_initial_epoch_with_a_session_replaces_it(cache: SessionCache) -> None:
    old = cache.fetch(0, 0, ["a0"]).session_id
    new = cache.fetch(old, 0, ["b0"])
    assert new.session_id not in (0, old)
    assert len(cache.sessions) == 1
    assert cache.refusal(old, 1) == "FETCH_SESSION_ID_NOT_FOUND"


def test_a_client_without_sessions_is_given_none(cache: SessionCache) -> None:
    # Requests before version 7 have neither field; these are the defaults.
    context = cache.fetch(0, -1, ["a0"], version=4)
    assert (context.session_id, read(context)) == (0, ["a0"])
    assert told(context) == told(context) == "a0"
    assert len(cache.sessions) == 0


def test_nothing_wanted_needs_no_session(cache: SessionCache) -> None:
    assert cache.fetch(0, 0, []).session_id == 0
    assert len(cache.sessions) == 0


def test_wrong_epochs_are_refused_and_change_nothing(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    assert cache.refusal(session, 2) == "INVALID_FETCH_SESSION_EPOCH"
    assert read(cache.fetch(session, 1)) == ["a0"]
    assert cache.refusal(session, 1, ["a1"]) == "INVALID_FETCH_SESSION_EPOCH"
    assert read(cache.fetch(session, 2)) == ["a0"]


def test_an_unknown_session_is_refused(cache: SessionCache) -> None:
    assert cache.refusal(4711, 1) == "FETCH_SESSION_ID_NOT_FOUND"


def test_a_session_speaks_of_names_or_of_ids_and_never_of_both(cache: SessionCache) -> None:
    by_name = cache.fetch(0, 0, ["a0"], version=12).session_id
    assert cache.refusal(by_name, 1, version=13) == "FETCH_SESSION_TOPIC_ID_ERROR"
    by_id = cache.fetch(0, 0, ["a0"], version=13).session_id
    assert cache.refusal(by_id, 1, version=12) == "FETCH_SESSION_TOPIC_ID_ERROR"
    context = cache.fetch(by_id, 1, ["b0"], ["a0"], version=13)
    assert [wanted.key for wanted in context.partitions] == [("", topic_id("b"), 0)]


def test_the_epoch_begins_again_at_one_after_the_largest(cache: SessionCache) -> None:
    first = cache.fetch(0, 0, ["a0"])
    assert first.session is not None
    first.session.epoch = EPOCH_MAX
    cache.fetch(first.session_id, EPOCH_MAX)
    assert read(cache.fetch(first.session_id, 1)) == ["a0"]


# What the response includes.


def test_only_news_is_told(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    assert told(cache.fetch(session, 1), high_watermark=5) == "a0", "new to the client"
    assert told(cache.fetch(session, 2), high_watermark=5) == ""
    assert told(cache.fetch(session, 3), high_watermark=6) == "a0"
    assert told(cache.fetch(session, 4), high_watermark=6, start=2) == "a0"
    assert told(cache.fetch(session, 5), high_watermark=6, start=2) == ""
    assert told(cache.fetch(session, 6), high_watermark=6, start=2, records=b"x") == "a0"


def test_an_error_is_told_every_time_and_so_is_its_end(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    assert told(cache.fetch(session, 1), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == "a0"
    assert told(cache.fetch(session, 2), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == "a0"
    assert told(cache.fetch(session, 3)) == "a0"
    assert told(cache.fetch(session, 4)) == ""


def test_what_the_full_reply_told_is_not_told_again(cache: SessionCache) -> None:
    first = cache.fetch(0, 0, ["a0"])
    assert told(first, high_watermark=5) == "a0"
    assert told(cache.fetch(first.session_id, 1), high_watermark=5) == ""


def test_a_partition_that_joins_later_is_told_though_nothing_happened(cache: SessionCache) -> None:
    first = cache.fetch(0, 0, ["a0"])
    told(first)
    assert told(cache.fetch(first.session_id, 1, ["a1"])) == "a1"


def test_who_was_served_goes_to_the_back(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0", "a1", "a2"]).session_id
    context = cache.fetch(session, 1)
    reply = m.FetchResponse.PartitionData(partition_index=0, records=b"x")
    assert context.must_send(context.partitions[0], reply)
    assert read(cache.fetch(session, 2)) == ["a1", "a2", "a0"]


def test_a_partition_that_was_forgotten_while_the_answer_was_pending_stays_forgotten(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0", "a1"]).session_id
    pending = cache.fetch(session, 1)
    cache.fetch(session, 2, [], ["a0"])
    assert told(pending, records=b"x") == "a0 a1"
    assert read(cache.fetch(session, 3)) == ["a1"]


def test_an_answer_to_an_ended_session_changes_nothing(cache: SessionCache) -> None:
    session = cache.fetch(0, 0, ["a0"]).session_id
    pending = cache.fetch(session, 1)
    cache.fetch(session, -1)
    assert told(pending, records=b"x") == "a0"
    assert len(cache.sessions) == 0


# Session limits.


def test_a_full_cache_gives_no_session_and_the_fetch_is_served_all_the_same() -> None:
    cache = SessionCache(slots_max=1)
    cache.fetch(0, 0, ["a0"])
    cache.now_ms = EVICTION_MS - 1
    turned_away = cache.fetch(0, 0, ["b0"])
    assert (turned_away.session_id, read(turned_away)) == (0, ["b0"])
    assert told(turned_away) == "b0"


def test_the_least_recently_used_makes_room_once_it_is_old_enough() -> None:
    cache = SessionCache(slots_max=2)
    used = cache.fetch(0, 0, ["a0"]).session_id
    unused = cache.fetch(0, 0, ["b0"]).session_id
    cache.now_ms = 1
    cache.fetch(used, 1)
    cache.now_ms = EVICTION_MS
    assert cache.fetch(0, 0, ["c0"]).session_id
    assert cache.refusal(unused, 1) == "FETCH_SESSION_ID_NOT_FOUND"
    assert read(cache.fetch(used, 2)) == ["a0"]
    assert len(cache.sessions) == 2


def test_there_may_be_no_room_for_sessions_at_all() -> None:
    cache = SessionCache(slots_max=0)
    assert cache.fetch(0, 0, ["a0"]).session_id == 0


def test_ids_are_drawn_until_one_is_free_and_not_zero() -> None:
    class Draws:
        drawn = iter([0, 5, 0, 5, 6])

        def below(self, bound: int) -> int:
            return next(self.drawn)

    sessions = FetchSessions(10, lambda: 100, Draws())  # type: ignore[arg-type]
    cache = SessionCache()
    cache.sessions = sessions
    assert [cache.fetch(0, 0, ["a0"]).session_id for _ in range(2)] == [5, 6]


def test_a_session_does_not_grow_beyond_what_one_request_may_name() -> None:
    cache = SessionCache()
    session = cache.fetch(wanted=[f"a{number}" for number in range(60)]).session_id
    assert cache.refusal(session, 1, [f"b{number}" for number in range(60)]) == "INVALID_REQUEST"
    assert len(cache.sessions) == 0


@pytest.mark.parametrize("is_later", [False, True])
def test_no_session_remembers_a_name_that_no_topic_can_have(is_later: bool) -> None:
    """A thousand sessions with thousands of 32 KiB names would fill the memory."""
    sessions = FetchSessions(10, lambda: 100, SeededEntropy(1))
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)

    def fetch(name: str, session_id: int = 0, epoch: int = 0) -> FetchContext:
        topics = [m.FetchRequest.FetchTopic(topic=name, partitions=[partition])]
        return sessions.context(m.FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics), 12, 0)

    if is_later:
        response = fetch("a" * 249)
        assert response.session_id
        with pytest.raises(Refused) as refused:
            fetch("a" * 250, response.session_id, 1)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    else:
        assert not fetch("a" * 250).session_id
    assert len(sessions) == 0
