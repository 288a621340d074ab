"""The longest lists and names that group, offset and fetch requests may have: none holds the loop for long.

Measured in CPU time of the thread, the minimum of a few tries: the host may run other guests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.coordination import coordination
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.kernel import COMPILED
from support.cpu import TRIES
from support.fuzz import watch
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.pools import Pools
from support.fuzz.scenes import OPEN
from support.fuzz.target import HostileLink, Target
from support.fuzz.watch import calm_collector

SLOWEST_SECONDS = 0.02 if COMPILED else 0.2
"""The pure Python twin has no guarantee."""

WIDE = 2_000
"""Partitions of the largest topic."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with pytest.MonkeyPatch.context() as patch:
        # All files of a topic wait for a sync at once.
        patch.setattr("millpond.sim.world.disk.FILES_MAX", 100_000)
        patch.setattr(watch, "TURN_SECONDS_MAX", 60.0)
        made = Target(0, replace(OPEN, settings={"max.partitions": "3000", "max.partitions.per.topic": "2000"}))
        made.prepare()
        topic = m.CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=WIDE, replication_factor=1)
        assert not made.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics[0].error_code
        made.pass_time(1000)
        calm_collector()
        yield made
    gc.enable()
    gc.unfreeze()


class Client:
    """One connection that keeps its responses."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._data: list[bytes] = []
        answers = Answers(Pools(Random(0)))
        answers.is_judged = False
        answers.take = self._data.append  # type: ignore[method-assign]
        link = target._accepted("10.1.1.1:1", answers, None)
        assert link is not None
        self.link: HostileLink = link

    def send(self, request: m.Message, version: int) -> None:
        assert request.API_KEY is not None
        frame = encode_request_header(request.API_KEY, version, 1, "whole") + request.encode(version)
        assert len(frame) <= 16 << 20, "it is legal"
        self._data.clear()
        self._target.deliver(self.link, LENGTH.pack(len(frame)) + frame, frame)

    def ask(self, request: m.Message, version: int) -> Any:
        assert request.API_KEY is not None
        self.send(request, version)
        for _ in range(100):
            self._target.pass_time(50)
            if self._data:
                break
        assert self.link.alive, self.link.fault
        reply = b"".join(self._data)[4:]
        _, position = decode_response_header(reply, request.API_KEY, version)
        return m.response_class(request.API_KEY).decode(reply, version, position)[0]

    def longest_turn(self, act: Callable[[], object]) -> float:
        longest = []
        for _ in range(TRIES):
            gc.collect()
            self._target.turn.longest_seconds = 0.0
            act()
            longest.append(self._target.turn.longest_seconds)
            if longest[-1] < SLOWEST_SECONDS:
                break
        return min(longest)


@pytest.fixture
def client(target: Target) -> Client:
    return Client(target)


def names(count: int, length: int = 0, character: str = "x") -> list[str]:
    return [f"{character * length}{number}" for number in range(count)]


NAMES = {
    "very many": names(9_990),
    "long ones": names(990, 16_000),
    "with one wide character": [f"{each}中" for each in names(500, 30_000)],
    "of three bytes a character": names(490, 10_900, "中"),
}


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def many_names(request: pytest.FixtureRequest) -> list[str]:
    named: list[str] = request.param
    return named


def commit_of(names: list[str], partitions: int, metadata: str = "") -> m.OffsetCommitRequest:
    kind = m.OffsetCommitRequest
    committed = [
        kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=metadata)
        for index in range(partitions)
    ]
    topics = [kind.OffsetCommitRequestTopic(name=name, partitions=committed) for name in names]
    return kind(group_id="crew", generation_id_or_member_epoch=-1, topics=topics)


@pytest.mark.parametrize("metadata", ["", "é" * 3_500], ids=["", "with metadata"])
def test_commits_of_all_partitions_of_a_wide_topic(client: Client, metadata: str) -> None:
    request = commit_of(["wide"], WIDE, metadata)

    def act() -> None:
        (topic,) = client.ask(request, 8).topics
        assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
            (index, 0) for index in range(WIDE)
        ]

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_commits_for_topics_with_such_names(client: Client, many_names: list[str]) -> None:
    request = commit_of(many_names, 1)

    def act() -> None:
        reply = client.ask(request, 8)
        assert [each.name for each in reply.topics] == many_names

    assert client.longest_turn(act) < SLOWEST_SECONDS


def offset_fetch(topics: list[Any] | None) -> m.OffsetFetchRequest:
    kind = m.OffsetFetchRequest
    return kind(groups=[kind.OffsetFetchRequestGroup(group_id="crew", topics=topics)])


def test_offsets_of_topics_with_such_names(client: Client, many_names: list[str]) -> None:
    kind = m.OffsetFetchRequest.OffsetFetchRequestTopics
    request = offset_fetch([kind(name=name, partition_indexes=[0]) for name in many_names])

    def act() -> None:
        (group,) = client.ask(request, 8).groups
        assert [(each.name, len(each.partitions)) for each in group.topics] == [(name, 1) for name in many_names]

    assert client.longest_turn(act) < SLOWEST_SECONDS


@pytest.mark.parametrize("version", [5, 8])
def test_offsets_of_as_many_partitions_as_a_request_may_name(client: Client, version: int) -> None:
    indexes = list(range(49_000))
    kind = m.OffsetFetchRequest
    if version < 8:
        request = kind(group_id="crew", topics=[kind.OffsetFetchRequestTopic(name="wide", partition_indexes=indexes)])
    else:
        request = offset_fetch([kind.OffsetFetchRequestTopics(name="wide", partition_indexes=indexes)])

    def act() -> None:
        reply = client.ask(request, version)
        (topic,) = reply.topics if version < 8 else reply.groups[0].topics
        assert [each.partition_index for each in topic.partitions] == indexes

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_offsets_of_groups_with_such_names(client: Client, many_names: list[str]) -> None:
    kind = m.OffsetFetchRequest
    request = kind(groups=[kind.OffsetFetchRequestGroup(group_id=name, topics=None) for name in many_names])
    assert client.longest_turn(lambda: client.ask(request, 8)) < SLOWEST_SECONDS


@pytest.mark.parametrize("key_type", [0, 1], ids=["groups", "transactions"])
def test_coordinators_of_such_names(client: Client, many_names: list[str], key_type: int) -> None:
    request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=many_names)

    def act() -> None:
        assert [each.key for each in client.ask(request, 4).coordinators] == many_names

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_groups_with_such_names(client: Client, many_names: list[str]) -> None:
    request = m.DescribeGroupsRequest(groups=many_names, include_authorized_operations=True)

    def act() -> None:
        assert [each.group_id for each in client.ask(request, 5).groups] == many_names

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_transactions_with_such_names(client: Client, many_names: list[str]) -> None:
    request = m.DescribeTransactionsRequest(transactional_ids=many_names)

    def act() -> None:
        assert [each.transactional_id for each in client.ask(request, 0).transaction_states] == many_names

    assert client.longest_turn(act) < SLOWEST_SECONDS


@pytest.mark.parametrize("has_cursor", [False, True])
def test_partitions_of_topics_with_such_names(client: Client, many_names: list[str], has_cursor: bool) -> None:
    kind = m.DescribeTopicPartitionsRequest
    # A nearly sorted list would need few comparisons.
    asked = Random(0).sample([*many_names, "wide"], len(many_names) + 1)
    cursor = kind.Cursor(topic_name="wide", partition_index=0) if has_cursor else None
    request = kind(topics=[kind.TopicRequest(name=name) for name in asked], cursor=cursor)

    def act() -> None:
        described = {each.name: each.error_code for each in client.ask(request, 0).topics}
        assert described.pop("wide") == ErrorCode.NONE
        assert described.keys() == {name for name in many_names if not has_cursor or name > "wide"}
        assert ErrorCode.NONE not in described.values()

    assert client.longest_turn(act) < SLOWEST_SECONDS


def sync_of(assignments: list[Any]) -> m.SyncGroupRequest:
    return m.SyncGroupRequest(group_id="nobody's", generation_id=1, member_id="m", assignments=assignments)


@pytest.mark.parametrize(
    "members", [names(19_900), names(490, 10_900, "中")], ids=["very many", "of three bytes a character"]
)
def test_assignments_for_such_members(client: Client, members: list[str]) -> None:
    kind = m.SyncGroupRequest.SyncGroupRequestAssignment
    size = ((16 << 20) - 1_000) // len(members) - 3 * len(members[-1]) - 20
    request = sync_of([kind(member_id=each, assignment=bytes(max(size, 0))) for each in members])

    def act() -> None:
        assert client.ask(request, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    assert client.longest_turn(act) < SLOWEST_SECONDS


@pytest.mark.parametrize("protocols", [names(2_990), names(490, 10_900, "中")], ids=["very many", "long ones"])
def test_a_member_with_such_protocols(client: Client, protocols: list[str]) -> None:
    kind = m.JoinGroupRequest
    request = kind(
        group_id="polyglots",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[kind.JoinGroupRequestProtocol(name=name, metadata=b"m") for name in protocols],
    )

    def act() -> None:
        code = client.ask(request, 5).error_code
        assert code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.POLICY_VIOLATION)

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_a_large_join_does_not_hold_up_what_comes_after_it(target: Target, client: Client) -> None:
    """It may wait minutes for other members; a member that leaves meanwhile says so on the same connection."""
    kind = m.JoinGroupRequest

    def join(protocols: int) -> m.JoinGroupRequest:
        return kind(
            group_id="crowd",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name=name, metadata=b"m") for name in names(protocols)],
        )

    first = client.ask(join(1), 3)
    assert first.error_code == 0
    second = Client(target)
    second.send(join(1_500), 3)
    target.pass_time(100)
    assert not second._data, "it waits for the first member"
    assert not second.link.is_paused
    assert second.link.alive
    client.ask(m.LeaveGroupRequest(group_id="crowd", member_id=first.member_id), 0)
    target.pass_time(5_000)
    (reply,) = [b"".join(second._data)[4:]]
    _, position = decode_response_header(reply, 11, 3)
    answer, _ = m.JoinGroupResponse.decode(reply, 3, position)
    assert (answer.error_code, len(answer.members)) == (0, 1)


def fetch(topics: list[Any], **more: Any) -> m.FetchRequest:
    return m.FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 64 << 20, "topics": topics} | more)


def fetch_topic(partitions: int, offset: int = 0, **named: Any) -> Any:
    kind = m.FetchRequest
    wanted = [
        kind.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    return kind.FetchTopic(**named, partitions=wanted)


def fetched(reply: Any) -> int:
    return sum(len(each.partitions) for each in reply.responses)


@pytest.mark.parametrize("version", [11, 15])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 29_990), (9_990, 2)])
def test_fetches_of_as_many_partitions_as_a_request_may_name(
    client: Client, version: int, topics: int, partitions: int
) -> None:
    named = [
        {"topic": name} if version < 13 else {"topic_id": UUID(int=number + 1)}
        for number, name in enumerate(names(topics))
    ]
    request = fetch([fetch_topic(partitions, **each) for each in named])

    def act() -> None:
        assert fetched(client.ask(request, version)) == topics * partitions

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_fetches_of_topics_with_such_names(client: Client, many_names: list[str]) -> None:
    request = fetch([fetch_topic(1, topic=name) for name in many_names])

    def act() -> None:
        assert fetched(client.ask(request, 11)) == len(many_names)

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_sessions_of_as_many_partitions_as_a_request_may_name(client: Client) -> None:
    kind = m.FetchRequest
    topics = [fetch_topic(2, topic=name) for name in names(9_990)]
    others = [fetch_topic(1, offset=3, topic=name) for name in names(4_990)]
    forgotten = [kind.ForgottenTopic(topic=name, partitions=[1]) for name in names(9_990)]

    def act() -> None:
        response = client.ask(fetch(topics, session_epoch=0), 11)
        assert fetched(response) == 19_980
        assert response.session_id
        more = client.ask(fetch(others, session_epoch=1, session_id=response.session_id), 11)
        assert fetched(more) == 19_980, "all of them are errors, of which it hears again"
        fewer = client.ask(
            fetch([], session_epoch=2, session_id=response.session_id, forgotten_topics_data=forgotten), 11
        )
        assert fetched(fewer) == 9_990
        client.ask(fetch([], session_epoch=-1, session_id=response.session_id), 11)

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_a_session_of_many_partitions_hears_only_of_news(client: Client) -> None:
    """What was already sent is not forgotten when the session's partitions are looked up in steps."""
    topics = [fetch_topic(WIDE, topic="wide")]
    response = client.ask(fetch(topics, session_epoch=0), 11)
    assert fetched(response) == WIDE
    again = client.ask(fetch(topics, session_epoch=1, session_id=response.session_id), 11)
    assert fetched(again) == 0, "nothing has changed"
    elsewhere = [fetch_topic(WIDE, offset=99, topic="wide")]
    beyond = client.ask(fetch(elsewhere, session_epoch=2, session_id=response.session_id), 11)
    assert {each.error_code for each in beyond.responses[0].partitions} == {ErrorCode.OFFSET_OUT_OF_RANGE}
    assert fetched(beyond) == WIDE
    # The request is small, its response is not.
    small = fetch([], session_epoch=3, session_id=response.session_id)
    assert fetched(client.ask(small, 11)) == WIDE
    client.ask(fetch([], session_epoch=-1, session_id=response.session_id), 11)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 29_990), (9_990, 2)])
def test_fetches_in_the_name_of_a_replica(client: Client, topics: int, partitions: int) -> None:
    request = fetch([fetch_topic(partitions, topic=name) for name in names(topics)], replica_id=1)

    def act() -> None:
        client.ask(request, 11)

    assert client.longest_turn(act) < SLOWEST_SECONDS


@pytest.mark.parametrize("version", [5, 8])
def test_all_offsets_of_a_group_with_very_many(client: Client, version: int) -> None:
    client.ask(commit_of(["wide"], WIDE, "é" * 2_000), 8)
    request = m.OffsetFetchRequest(group_id="crew", topics=None) if version < 8 else offset_fetch(None)

    def act() -> None:
        reply = client.ask(request, version)
        topics = {each.name: each for each in (reply.topics if version < 8 else reply.groups[0].topics)}
        partitions = topics["wide"].partitions
        assert [(each.partition_index, each.committed_offset) for each in partitions] == [
            (index, 7) for index in range(WIDE)
        ]
        assert {each.metadata for each in partitions} == {"é" * 2_000}

    assert client.longest_turn(act) < SLOWEST_SECONDS


def test_offsets_that_are_read_in_steps_are_those_of_one_moment(target: Target, client: Client) -> None:
    client.ask(commit_of(["wide"], WIDE), 8)
    client.send(offset_fetch(None), 8)
    other = Client(target)
    newer = commit_of(["wide"], 400)
    for each in newer.topics[0].partitions:
        each.committed_offset = 9
    # It is served at once, before the other's response is built.
    other.send(newer, 8)
    target.pass_time(2_000)
    assert other._data
    _, position = decode_response_header(b"".join(client._data)[4:], 9, 8)
    reply, _ = m.OffsetFetchResponse.decode(b"".join(client._data)[4:], 8, position)
    (topic,) = [each for each in reply.groups[0].topics if each.name == "wide"]
    assert {each.committed_offset for each in topic.partitions} == {7}


def test_members_of_a_large_group_are_answered_some_in_each_turn(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "REPLIES_AT_ONCE", 2)
    kind = m.JoinGroupRequest
    clients = [Client(target) for _ in range(7)]
    answered: list[int] = []
    end = target.turn.end

    def count(what: object) -> None:
        answered.append(sum(bool(each._data) for each in clients))
        end(what)

    def join(client: Client, member_id: str = "") -> None:
        protocols = [kind.JoinGroupRequestProtocol(name="range", metadata=b"m")]
        client.send(
            kind(
                group_id="choir",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=protocols,
            ),
            3,
        )

    def answer(client: Client) -> Any:
        reply = b"".join(client._data)[4:]
        _, position = decode_response_header(reply, 11, 3)
        return m.JoinGroupResponse.decode(reply, 3, position)[0]

    for each in clients:
        join(each)
    target.pass_time(100)
    early = [each for each in clients if each._data]
    for each in early:
        join(each, answer(each).member_id)
    monkeypatch.setattr(target.turn, "end", count)
    target.pass_time(10_000)
    replies = [answer(each) for each in clients]
    assert {each.error_code for each in replies} == {0}
    assert len({each.generation_id for each in replies}) == 1
    assert max(after - before for before, after in pairwise(answered)) <= 2
