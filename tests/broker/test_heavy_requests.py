"""Small requests that ask for a lot: none may hold the loop for long.

Measured in CPU time of the thread, so that a busy machine does not fail the test. Each of them used to take much
longer.
"""

from __future__ import annotations

import gc
import gzip
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from millpond.base.errors import ErrorCode
from millpond.broker.apis import k02_list_offsets
from millpond.broker.serving.pieces import PIECE_ITEMS
from millpond.coordinators.runtime import KEY_LENGTH_MAX
from millpond.log.lookup import WORK_BASE, WORK_PER_LOOKUP, LookupBudget, TimeLookup
from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.kernel import COMPILED
from millpond.wire.records import Record, _varint, encode_batch, wrap_payload
from support.cpu import TRIES, least_seconds
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.pools import NOW_MS, Pools
from support.fuzz.scenes import OPEN
from support.fuzz.target import HostileLink, Target
from support.fuzz.watch import Slow, calm_collector

LONG_NAME = "\x01" * 32_000
WIDE = 40
"""Partitions of a wide topic: the maximum in the fuzzer's small world."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target(0, OPEN)
    made.prepare()
    topic = m.CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=WIDE, replication_factor=1)
    assert not made.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics[0].error_code
    # Collecting what other tests have left behind takes longer than any of these may.
    calm_collector()
    yield made
    gc.enable()
    gc.unfreeze()


class Client:
    """One connection that keeps its responses."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connect()

    def _connect(self) -> None:
        self._answers: list[bytes] = []
        answers = Answers(Pools(Random(0)))
        answers.is_judged = False
        answers.take = self._answers.append  # type: ignore[method-assign]
        link = self._target._accepted("10.1.1.1:1", answers, None)
        assert link is not None
        self.link: HostileLink = link

    def say(self, frame: bytes) -> None:
        """Measure the following turns of the loop; raise if one is too long in every one of a few tries."""
        for tries_left in reversed(range(TRIES)):
            try:
                self._say(frame)
                return
            except Slow:
                if not tries_left:
                    raise
                # CPU time that the hypervisor gives to other guests counts as the loop's own.
                self._connect()

    def _say(self, frame: bytes) -> None:
        self._target.turn.longest_seconds = 0.0
        self._target.deliver(self.link, LENGTH.pack(len(frame)) + frame, frame)
        for _ in range(100):
            self._target.pass_time(100)
            if self._answers or not self.link.alive:
                return

    def ask(self, request: m.Message, version: int) -> Any:
        assert request.API_KEY is not None
        self._answers.clear()
        self.say(encode_request_header(request.API_KEY, version, 1, "heavy") + request.encode(version))
        assert self._answers, f"no answer: {self.link.fault}"
        reply = b"".join(self._answers)[4:]
        _, position = decode_response_header(reply, request.API_KEY, version)
        return m.response_class(request.API_KEY).decode(reply, version, position)[0]


@pytest.fixture
def client(target: Target) -> Client:
    return Client(target)


def warmed(client: Client, make: Callable[[int], m.Message], version: int, count: int) -> Any:
    """The response for this many items; one item is sent first, because code is compiled on first use."""
    client.ask(make(1), version)
    return client.ask(make(count), version)


def test_a_topic_that_is_named_again_and_again(client: Client) -> None:
    kind = m.MetadataRequest
    reply = warmed(
        client, lambda count: kind(topics=[kind.MetadataRequestTopic(name="wide") for _ in range(count)]), 9, 10_000
    )
    assert [(each.name, len(each.partitions)) for each in reply.topics] == [("wide", WIDE)]


def test_the_settings_of_a_broker_again_and_again(client: Client) -> None:
    kind = m.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    reply = warmed(
        client,
        lambda count: kind(resources=[resource] * count, include_synonyms=True, include_documentation=True),
        4,
        10_000,
    )
    (result,) = reply.results
    assert len(result.configs) > 50


def test_the_settings_of_very_many_topics(client: Client) -> None:
    kind = m.DescribeConfigsRequest

    def ask_for(count: int) -> m.Message:
        return kind(
            resources=[
                kind.DescribeConfigsResource(resource_type=32, resource_name=f"group-{each}", configuration_keys=None)
                for each in range(count)
            ],
            include_synonyms=True,
        )

    assert len(warmed(client, ask_for, 4, 5_000).results) == 5_000


def test_brokers_with_long_names(client: Client) -> None:
    kind = m.DescribeConfigsRequest

    def ask_for(count: int) -> m.Message:
        return kind(
            resources=[
                kind.DescribeConfigsResource(
                    resource_type=4, resource_name=f"{each}{LONG_NAME}", configuration_keys=None
                )
                for each in range(count)
            ]
        )

    reply = warmed(client, ask_for, 4, 300)
    assert {each.error_code for each in reply.results} == {ErrorCode.INVALID_REQUEST}
    assert max(len(each.error_message) for each in reply.results) < 2_000


@pytest.mark.parametrize(
    ("make", "version"),
    [
        (lambda names: m.DescribeGroupsRequest(groups=names), 5),
        (lambda names: m.DeleteGroupsRequest(groups_names=names), 2),
        (lambda names: m.ConsumerGroupDescribeRequest(group_ids=names), 1),
        (lambda names: m.DescribeTransactionsRequest(transactional_ids=names), 0),
        (
            lambda names: m.OffsetFetchRequest(
                groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
            ),
            8,
        ),
    ],
    ids=["DescribeGroups", "DeleteGroups", "ConsumerGroupDescribe", "DescribeTransactions", "OffsetFetch"],
)
def test_thousands_of_groups(client: Client, make: Callable[[list[str]], m.Message], version: int) -> None:
    warmed(client, lambda count: make([f"group-{each}" for each in range(count)]), version, 5_000)


def test_groups_with_long_names(client: Client) -> None:
    reply = warmed(
        client,
        lambda count: m.FindCoordinatorRequest(
            key_type=0, coordinator_keys=[f"{each}{LONG_NAME}" for each in range(count)]
        ),
        4,
        500,
    )
    assert {each.error_code for each in reply.coordinators} == {ErrorCode.INVALID_REQUEST}
    reply = client.ask(
        m.FindCoordinatorRequest(
            key_type=0, coordinator_keys=[f"{each:06}".ljust(KEY_LENGTH_MAX, "x") for each in range(8_000)]
        ),
        4,
    )
    assert {each.error_code for each in reply.coordinators} == {ErrorCode.NONE}


def test_all_offsets_of_one_group_again_and_again(client: Client) -> None:
    commit = m.OffsetCommitRequest
    partition = commit.OffsetCommitRequestPartition
    partitions = [partition(partition_index=index, committed_offset=1) for index in range(WIDE)]
    topic = commit.OffsetCommitRequestTopic(name="wide", partitions=partitions)
    committed = client.ask(commit(group_id="crew", generation_id_or_member_epoch=-1, topics=[topic]), 8)
    assert not committed.topics[0].partitions[0].error_code
    kind = m.OffsetFetchRequest
    group = kind.OffsetFetchRequestGroup(group_id="crew", topics=None)
    reply = warmed(client, lambda count: kind(groups=[group] * count), 8, 10_000)
    assert [len(each.topics[0].partitions) for each in reply.groups] == [WIDE]


def test_the_producers_of_one_partition_again_and_again(client: Client) -> None:
    kind = m.DescribeProducersRequest
    reply = warmed(
        client,
        lambda count: kind(topics=[kind.TopicRequest(name="pond", partition_indexes=[0] * count)]),
        0,
        40_000,
    )
    assert [len(each.partitions) for each in reply.topics] == [1]


def test_offsets_by_time_of_one_partition_again_and_again(client: Client) -> None:
    """Each lookup would have a worker read the file again; Kafka rejects them in the same way."""
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=1)
    other = kind.ListOffsetsPartition(partition_index=1, timestamp=1)
    topic = kind.ListOffsetsTopic(name="pond", partitions=[partition, partition, other])
    reply = client.ask(kind(replica_id=-1, topics=[topic]), 7)
    codes = [each.error_code for each in reply.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_million_tagged_fields(client: Client, where: str) -> None:
    tags = b"\xc0\x84\x3d" + b"\x09\0" * 1_000_000
    head = encode_request_header(3, 12, 1, "heavy")
    body = m.MetadataRequest(topics=None).encode(12)
    client.say(head[:-1] + tags + body if where == "header" else head + body[:-1] + tags)
    assert not client.link.alive
    assert "more items" in client.link.fault


def test_a_request_that_is_large_without_records(client: Client) -> None:
    kind = m.MetadataRequest
    topics = [kind.MetadataRequestTopic(name=f"{each}é{LONG_NAME}") for each in range(600)]
    client.say(encode_request_header(3, 9, 1, "heavy") + kind(topics=topics).encode(9))
    assert not client.link.alive
    assert "max.request.plain.bytes" in client.link.fault


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (1, gzip.compress(b"", mtime=0) * 45_000),
        (2, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"\0\0\0\1\0" * 180_000),
        (3, b"\x04\x22\x4d\x18\x60\x40\x82\0\0\0\0" * 80_000),
        (4, b"\x28\xb5\x2f\xfd\0\x58\1\0\0" * 100_000),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_a_batch_of_very_many_streams_of_nothing(client: Client, codec: int, data: bytes) -> None:
    """To a compacted topic, where the key of every record is inspected."""
    batch = bytearray(encode_batch([Record(0, NOW_MS, b"k", b"v")], codec=codec))[:61] + data
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    kind = m.ProduceRequest
    data = kind.PartitionProduceData(index=0, records=bytes(batch))
    topic = kind.TopicProduceData(name="lake", partition_data=[data])
    reply = client.ask(kind(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    assert reply.responses[0].partition_responses[0].error_code


def produce(client: Client, topic: str, batches: dict[int, bytes], version: int = 9, acks: int = 1) -> Any:
    kind = m.ProduceRequest
    data = kind.TopicProduceData(
        name=topic,
        partition_data=[
            kind.PartitionProduceData(index=index, records=records) for index, records in batches.items()
        ],
    )
    reply = client.ask(kind(transactional_id=None, acks=acks, timeout_ms=5000, topic_data=[data]), version)
    return reply.responses[0].partition_responses


def full_batch(records: int = 100_000, *, key: bytes = b"\x01", base: int = NOW_MS, latest: int = NOW_MS) -> bytes:
    """As many small records as a batch may have. A key of one byte: b"\x01" is no key, b"\x02k" is k."""
    parts = []
    for delta in range(records):
        body = b"\0\0" + _varint(delta) + key + b"\x01\0"
        parts.append(_varint(len(body)) + body)
    return wrap_payload(b"".join(parts), records, base, latest)


def test_offsets_by_time_of_batches_that_lie_about_theirs(target: Target, client: Client) -> None:
    """Ten partitions of sixteen batches took a worker tens of seconds, whether or not the client waited."""
    batch = full_batch(latest=NOW_MS + 1_000)
    for _ in range(3):
        for index in range(10):
            assert not produce(client, "wide", {index: batch})[0].error_code
    kind = m.ListOffsetsRequest
    partitions = [kind.ListOffsetsPartition(partition_index=index, timestamp=NOW_MS + 500) for index in range(10)]
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="wide", partitions=partitions)])

    def look() -> None:
        reply = client.ask(request, 7)
        assert [(each.error_code, each.offset) for each in reply.topics[0].partitions] == [(0, -1)] * 10

    assert least_seconds(look) < 0.5 or not COMPILED


def test_the_pieces_of_a_request_for_offsets_by_time_share_one_budget(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[LookupBudget] = []

    def make(*arguments: Any) -> LookupBudget:
        budgets.append(LookupBudget(*arguments))
        return budgets[-1]

    monkeypatch.setattr(k02_list_offsets, "LookupBudget", make)
    kind, count = m.ListOffsetsRequest, 20 * PIECE_ITEMS
    partitions = [kind.ListOffsetsPartition(partition_index=1_000 + index, timestamp=1) for index in range(count)]
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="pond", partitions=partitions)])
    assert len(client.ask(request, 7).topics[0].partitions) == count
    assert [each.left for each in budgets] == [WORK_BASE + WORK_PER_LOOKUP * count]


def test_offsets_by_time_are_not_looked_up_for_a_client_that_has_gone(
    target: Target, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(TimeLookup, "_search", lambda lookup: ran.append(lookup))
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=1)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="pond", partitions=[partition])])
    frame = encode_request_header(2, 7, 1, "heavy") + request.encode(7)
    clients = [client, *(Client(target) for _ in range(9))]
    for each in clients:
        target.deliver(each.link, LENGTH.pack(len(frame)) + frame, frame)
        each.link.abort()
    target.pass_time(5_000)
    assert len(ran) <= 2, "those that a worker had already taken"
    assert client.link.alive is False


@pytest.fixture(scope="module")
def compacted(target: Target) -> str:
    kind = m.CreateTopicsRequest
    config = kind.CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = kind.CreatableTopic(name="table", num_partitions=WIDE, replication_factor=1, configs=[config])
    assert not target.ask(kind(topics=[topic], timeout_ms=5000), 7).topics[0].error_code
    return "table"


TURN_MS = 20
SLOWEST_MS = TURN_MS if COMPILED else 200
"""The pure Python twin has no guarantee."""


def many(batch: bytes) -> dict[int, bytes]:
    """The batch for many partitions, in a request of moderate size. The node may have only 48 open files."""
    return dict.fromkeys(range(min(20, (8 << 20) // len(batch))), batch)


def longest_ms(client: Client, act: Callable[[], object]) -> float:
    """The longest turn that `act` takes; the minimum of a few tries, as the host may run other guests."""
    longest = []
    for _ in range(TRIES):
        act()
        longest.append(1000 * client._target.turn.longest_seconds)
        if longest[-1] < SLOWEST_MS:
            break
    return min(longest)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_full_batches_without_keys_for_a_compacted_topic(client: Client, compacted: str, codec: int) -> None:
    batch = packed(full_batch(), codec)
    produce(client, compacted, {0: batch})

    def act() -> None:
        replies = produce(client, compacted, many(batch))
        assert {each.error_code for each in replies} == {ErrorCode.INVALID_RECORD}
        assert {len(each.record_errors) for each in replies} == {1000}
        assert [each.index for each in replies] == list(many(batch))

    assert longest_ms(client, act) < SLOWEST_MS


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_full_batches_with_timestamps_too_far_ahead(client: Client, codec: int) -> None:
    ahead = NOW_MS + (1 << 40)
    batch = packed(full_batch(base=ahead, latest=ahead), codec)
    produce(client, "wide", {0: batch})

    def act() -> None:
        replies = produce(client, "wide", many(batch))
        assert {each.error_code for each in replies} == {ErrorCode.INVALID_TIMESTAMP}
        assert {len(each.record_errors) for each in replies} == {1000}

    assert longest_ms(client, act) < SLOWEST_MS


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_full_batches_with_keys_for_a_compacted_topic(client: Client, compacted: str, codec: int) -> None:
    batch = packed(full_batch(80_000, key=b"\x02k"), codec)
    produce(client, compacted, {0: batch})

    def act() -> None:
        replies = produce(client, compacted, many(batch), acks=-1)
        assert {each.error_code for each in replies} == {ErrorCode.NONE}

    assert longest_ms(client, act) < SLOWEST_MS


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("partitions", [1, 20])
def test_batches_that_grow_large_when_unpacked(client: Client, compacted: str, codec: int, partitions: int) -> None:
    body = b"\0\0\0\x02k" + _varint(15 << 20) + b"\0" * (15 << 20) + b"\0"
    batch = wrap_payload(_varint(len(body)) + body, 1, NOW_MS, NOW_MS, codec=codec)
    assert len(batch) < 1 << 20
    produce(client, compacted, {0: batch})

    def act() -> None:
        replies = produce(client, compacted, {0: batch} if partitions == 1 else many(batch))
        assert {each.error_code for each in replies} == {ErrorCode.NONE}

    assert longest_ms(client, act) < SLOWEST_MS


def packed(batch: bytes, codec: int) -> bytes:
    header = read_header(batch)
    return wrap_payload(
        batch[HEADER_BYTES:], header.record_count, header.base_timestamp, header.max_timestamp, codec=codec
    )


def test_a_partition_that_a_heavy_request_names_twice_is_refused(client: Client) -> None:
    kind = m.ProduceRequest
    full = full_batch(10, key=b"\x02k")
    indexes = [0, *range(1, 10), 0]
    large = encode_batch([Record(0, NOW_MS, b"k", b"v" * 400_000)])
    data = kind.TopicProduceData(
        name="wide",
        partition_data=[
            kind.PartitionProduceData(index=index, records=large if index else full) for index in indexes
        ],
    )
    request = kind(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[data])
    (topic,) = client.ask(request, 9).responses
    codes = [each.error_code for each in topic.partition_responses]
    assert codes == [ErrorCode.INVALID_REQUEST, *[0] * 9, ErrorCode.INVALID_REQUEST]


def test_a_heavy_request_and_what_follows_it_are_appended_in_order(target: Target, client: Client) -> None:
    """One producer's batches on one connection, pipelined: heavy, light, and on the short path."""
    kind = m.ProduceRequest
    before = target.node.broker.partitions.get("table", 5).log.end_offset  # type: ignore[union-attr]
    frames = []
    sequence = 0
    for number in range(6):
        count = 50_000 if number % 2 == 0 else 1
        batch = bytearray(packed(full_batch(count, key=b"\x02k"), 1 if number % 2 == 0 else 0))
        struct.pack_into(">qhi", batch, 43, 7_777, 0, sequence)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        sequence += count
        data = kind.PartitionProduceData(index=5, records=bytes(batch))
        topic = kind.TopicProduceData(name="table", partition_data=[data])
        request = kind(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[topic])
        frame = encode_request_header(0, 9, number, "heavy") + request.encode(9)
        frames.append(LENGTH.pack(len(frame)) + frame)
    data = b"".join(frames)
    target.deliver(client.link, data, data)
    target.pass_time(5_000)
    codes = []
    reply = b"".join(client._answers)
    at = 0
    while at < len(reply):
        (size,) = LENGTH.unpack_from(reply, at)
        _, position = decode_response_header(reply[at + 4 : at + 4 + size], 0, 9)
        answer, _ = m.ProduceResponse.decode(reply[at + 4 : at + 4 + size], 9, position)
        codes.append(answer.responses[0].partition_responses[0])
        at += 4 + size
    assert [(each.error_code, each.base_offset - before) for each in codes] == [
        (0, 0),
        (0, 50_000),
        (0, 50_001),
        (0, 100_001),
        (0, 100_002),
        (0, 150_002),
    ]


def unknown_topics(kind: str, count: int) -> tuple[m.Message, int]:
    names = [f"unknown-{each}" for each in range(count)]
    if kind == "Metadata":
        topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        return m.MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9
    described = [m.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    return m.DescribeTopicPartitionsRequest(topics=described, response_partition_limit=2000), 0


@pytest.mark.parametrize("kind", ["Metadata", "DescribeTopicPartitions"])
def test_thousands_of_unknown_topics(client: Client, kind: str) -> None:
    client.ask(*unknown_topics(kind, 1))

    def act() -> None:
        reply = client.ask(*unknown_topics(kind, 9_990))
        assert len(reply.topics) == 9_990
        assert {each.error_code for each in reply.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert kind != "Metadata" or len(reply.brokers) == 1

    assert longest_ms(client, act) < SLOWEST_MS
