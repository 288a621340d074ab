"""Produce in process: the short and the general path, what an acknowledgement waits for, and what is rejected."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, MalformedMessage, RemoteError
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.later import Later
from millpond.broker.apis import k00_produce
from millpond.broker.produce import general_path
from millpond.config.node import node_settings
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import Record, decode_batch, encode_batch

VERSIONS = range(3, 14)
ASKED: Any = SimpleNamespace(settings=node_settings({}))
"""What the oldest requests need from a broker."""
SLOW_MS = 100_000
"""How long a worker takes when the test wants nothing to be synced."""


class ProduceBroker:
    """A broker with a topic, a producer connected to it, and the path that its requests take."""

    def __init__(
        self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview], **configs: str
    ) -> None:
        self.server = make_server()
        self.partition = self.server.create("pond", 2, **configs)
        self.producer = self.server.connect()
        self.batch = make_batch
        self.generals = 0
        self._count_generals()

    def _count_generals(self) -> None:
        entry = self.server.broker.dispatcher._entries[0]
        handle = entry.api.handle

        def counting(*args: Any) -> Any:
            self.generals += 1
            return handle(*args)

        self._replace(entry, handle=counting)

    def without_short_path(self) -> ProduceBroker:
        self._replace(self.server.broker.dispatcher._entries[0], short=None)
        return self

    @staticmethod
    def _replace(entry: Any, **parts: Any) -> None:
        names = ("key", "name", "versions", "handle", "lists", "short", "advertised", "refuse", "rights")
        kept = {name: getattr(entry.api, name) for name in names}
        entry.api = type(entry.api)(**{**kept, **parts})

    def request(
        self,
        version: int,
        *records: tuple[int, memoryview | None],
        acks: int = -1,
        topic: str = "pond",
        **fields: Any,
    ) -> m.ProduceRequest:
        found = self.server.broker.image.topics.get(topic)
        return m.ProduceRequest(
            acks=acks,
            **{"timeout_ms": 5_000, **fields},
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    name=topic if version < 13 else "",
                    topic_id=found.id if version >= 13 and found else NO_TOPIC_ID,
                    partition_data=[
                        m.ProduceRequest.PartitionProduceData(index=index, records=data) for index, data in records
                    ],
                )
            ],
        )

    def send(self, version: int, *records: tuple[int, memoryview | None], acks: int = -1, **fields: Any) -> None:
        self.producer.send(self.request(version, *records, acks=acks, **fields), version, is_answered=acks != 0)

    def answers(self) -> list[tuple[int, int]]:
        """Error and base offset of each partition answered since the last call."""
        return [
            (partition.error_code, partition.base_offset)
            for reply in self.producer.replies()
            for topic in reply.responses
            for partition in topic.partition_responses
        ]

    def begin_log(self, index: int) -> None:
        """The first batch of a log never takes the short path: its leader epoch has not begun."""
        self.send(9, (index, self.batch(b"first")))
        self.server.run(100)
        assert self.answers() == [(0, 0)]

    def slow_disk(self) -> None:
        self.server.node.workers_delay_ms = SLOW_MS
        self.server.broker.workers._random = SimpleNamespace(randint=lambda _, longest: longest)


@pytest.fixture
def host(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> ProduceBroker:
    return ProduceBroker(make_server, make_batch)


# Two paths, one response.


@pytest.mark.parametrize("configs", [{}, {"flush_ack": "never"}])
def test_the_short_path_answers_byte_for_byte_as_the_general_one(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], configs: dict[str, str]
) -> None:
    short = ProduceBroker(make_server, make_batch, **configs)
    general = ProduceBroker(make_server, make_batch, **configs).without_short_path()
    replies = []
    for each in (short, general):
        each.begin_log(1)
        for version in VERSIONS:
            for acks in (1, -1):
                each.send(version, (1, make_batch(b"a", b"b")), acks=acks)
        each.server.run(200)
        replies.append(each.producer.link.frames())
    assert replies[0] == replies[1]
    assert len(replies[0]) == 2 * len(VERSIONS)
    assert (short.generals, general.generals) == (1, 1 + 2 * len(VERSIONS))


@pytest.mark.parametrize("fault", ["sync fails", "time runs out"])
def test_both_paths_report_a_failed_commit_in_the_same_bytes(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], fault: str
) -> None:
    replies = []
    for path in ("short", "general"):
        frames = []
        for version in VERSIONS:
            host = ProduceBroker(make_server, make_batch)
            if path == "general":
                host.without_short_path()
            host.begin_log(0)
            if fault == "sync fails":
                host.server.disk.fail_syncs("/pond-0/")
            else:
                host.slow_disk()
            host.send(version, (0, make_batch(b"a")), timeout_ms=300)
            host.server.run(301)
            frames += host.producer.link.frames()
            assert host.generals == (2 if path == "general" else 1)
        replies.append(frames)
    assert len(replies[0]) == len(VERSIONS)
    assert replies[0] == replies[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_short_path_does_not_take_is_left_to_the_general_one(host: ProduceBroker, version: int) -> None:
    host.send(version, (0, host.batch(b"a")), (1, host.batch(b"b")), acks=1)
    host.send(version, (7, host.batch(b"a")), acks=1)
    host.send(version, (0, host.batch(b"a")), acks=0)
    host.send(version, (0, None), acks=1)
    assert host.generals == 4
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert host.answers() == [(0, 0), (0, 0), (unknown, -1), (ErrorCode.INVALID_RECORD, -1)]


def test_the_general_path_reports_what_the_short_one_does_not_append(host: ProduceBroker) -> None:
    records = host.batch(b"a")
    records[-1] ^= 1
    host.send(9, (0, records), acks=1)
    (reply,) = host.producer.replies()
    (answer,) = reply.responses[0].partition_responses
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert "CRC" in answer.error_message
    assert host.partition.log.end_offset == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_one_request_has_one_batch_for_each_partition(host: ProduceBroker, version: int) -> None:
    identity = {"producer_id": 5, "producer_epoch": 0}
    host.send(version, (0, host.batch(b"a", base_sequence=0, **identity)), acks=1)
    both = bytes(host.batch(b"a", base_sequence=0, **identity)) + bytes(host.batch(b"b", base_sequence=1, **identity))
    host.send(version, (0, memoryview(bytearray(both))), acks=1)
    host.send(version, (0, host.batch(b"b", base_sequence=1, **identity)), acks=1)
    assert host.answers() == [(0, 0), (ErrorCode.INVALID_RECORD, -1), (0, 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_is_named_once_in_a_request(host: ProduceBroker, version: int) -> None:
    host.send(version, (0, host.batch(b"a")), (1, host.batch(b"b")), (0, host.batch(b"c")), acks=1)
    assert host.answers() == [(ErrorCode.INVALID_REQUEST, -1), (0, 0), (ErrorCode.INVALID_REQUEST, -1)]
    assert host.partition.log.end_offset == 0


def test_a_refusal_names_the_records_that_are_its_cause(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = ProduceBroker(make_server, make_batch, cleanup_policy="compact", message_timestamp_before_max_ms="5000")

    def errors(
        *records: tuple[int, bytes | None], version: int = 8, **fields: Any
    ) -> tuple[int, list[tuple[int, str]]]:
        stamped = [Record(at, WALL_START_MS + lag, key, b"v") for at, (lag, key) in enumerate(records)]
        host.send(version, (0, memoryview(bytearray(encode_batch(stamped, **fields)))), acks=1)
        (reply,) = host.producer.replies()
        (answer,) = reply.responses[0].partition_responses
        assert bool(answer.error_message) is (version >= 8)
        return answer.error_code, [
            (each.batch_index, each.batch_index_error_message) for each in answer.record_errors
        ]

    no_key = "records of a compacted topic need a key"
    keys = [(0, b"k"), (0, None), (0, b"k"), (0, None)]
    assert errors(*keys) == (ErrorCode.INVALID_RECORD, [(1, no_key), (3, no_key)])
    assert errors(*keys, codec=2) == (ErrorCode.INVALID_RECORD, [(1, no_key), (3, no_key)])
    assert errors(*keys, version=7) == (ErrorCode.INVALID_RECORD, [])
    code, late = errors((0, b"k"), (10**8, b"k"))
    assert (code, [at for at, _ in late]) == (ErrorCode.INVALID_TIMESTAMP, [1])
    assert str(WALL_START_MS + 10**8) in late[0][1]
    code, early = errors((-6000, b"k"), (0, b"k"), (-7000, b"k"))
    assert (code, [at for at, _ in early]) == (ErrorCode.INVALID_TIMESTAMP, [0, 2])
    assert host.partition.log.end_offset == 0


def test_zstd_needs_version_seven(host: ProduceBroker) -> None:
    for version in (6, 7):
        host.send(version, (0, host.batch(b"a" * 100, codec=4)), acks=1)
    assert host.answers() == [(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1), (0, 0)]


# What an acknowledgement waits for.


def test_acks_zero_is_not_answered_and_acks_one_does_not_wait(host: ProduceBroker) -> None:
    host.send(9, (0, host.batch(b"a")), acks=0)
    host.send(9, (0, host.batch(b"b")), acks=1)
    assert host.answers() == [(0, 1)]
    host.server.run(1000)
    assert host.partition.log.synced_offset == 0


@pytest.mark.parametrize("is_short", [True, False])
def test_acks_all_waits_for_the_sync(host: ProduceBroker, is_short: bool) -> None:
    host.begin_log(0)
    if not is_short:
        host.without_short_path()
    host.send(9, (0, host.batch(b"a")))
    assert host.answers() == []
    host.server.sim.run_until(lambda: host.partition.log.synced_offset == 2, within_ms=100)
    assert host.answers() == [(0, 1)]


def test_one_sync_acknowledges_many(host: ProduceBroker) -> None:
    producers = [host.server.connect() for _ in range(20)]
    before = host.server.syncs("pond-0")
    for producer in producers:
        producer.send(host.request(9, (0, host.batch(b"a"))), 9)
    host.server.run(200)
    assert all(len(producer.replies()) == 1 for producer in producers)
    assert host.server.syncs("pond-0") - before <= 4


def test_flush_ack_never_does_not_wait(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = ProduceBroker(make_server, make_batch, flush_ack="never")
    host.send(9, (0, make_batch(b"a")))
    assert host.answers() == [(0, 0)]


def test_a_duplicate_is_acknowledged_once_its_first_copy_is_safe(host: ProduceBroker) -> None:
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    host.send(9, (0, host.batch(b"a", **fields)), acks=1)
    host.send(9, (0, host.batch(b"a", **fields)))
    assert host.answers() == [(0, 0)]
    host.server.run(100)
    assert host.answers() == [(0, 0)]
    assert (host.partition.log.end_offset, host.partition.log.synced_offset) == (1, 1)


@pytest.mark.parametrize("is_short", [True, False])
def test_a_slow_sync_times_out_with_an_unknown_outcome(host: ProduceBroker, is_short: bool) -> None:
    host.begin_log(0)
    if not is_short:
        host.without_short_path()
    host.slow_disk()
    host.send(9, (0, host.batch(b"a")), timeout_ms=300)
    host.server.run(299)
    assert host.answers() == []
    host.server.run(1)
    assert host.answers() == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    host.server.run(3 * SLOW_MS)
    assert host.partition.log.synced_offset == 2
    assert host.answers() == [], "it is answered once"


def test_no_producer_may_wait_for_ever(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = ProduceBroker(lambda: make_server({"produce.wait.max.ms": "1000"}), make_batch)
    host.slow_disk()
    host.send(9, (0, make_batch(b"a")), timeout_ms=(1 << 31) - 1)
    host.server.run(1000)
    assert host.answers() == [(ErrorCode.REQUEST_TIMED_OUT, -1)]


@pytest.mark.parametrize("is_short", [True, False])
def test_a_failed_sync_is_never_an_acknowledgement(host: ProduceBroker, is_short: bool) -> None:
    host.begin_log(0)
    if not is_short:
        host.without_short_path()
    host.server.disk.fail_syncs("/pond-0/")
    host.send(9, (0, host.batch(b"a")))
    host.send(9, (0, host.batch(b"b")))
    host.send(9, (1, host.batch(b"c")))
    host.server.run(200)
    broken = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert host.answers() == [broken, broken, (0, 0)]
    # The log stays closed even though the disk works again.
    host.send(9, (0, host.batch(b"d")), acks=1)
    assert host.answers() == [broken]


def test_one_of_several_partitions_may_fail(host: ProduceBroker) -> None:
    host.server.disk.fail_syncs("/pond-0/")
    host.send(9, (0, host.batch(b"a")), (1, host.batch(b"b")), (7, host.batch(b"c")))
    host.server.run(200)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert host.answers() == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 0), unknown]


def test_replies_keep_their_order_though_later_ones_are_ready(host: ProduceBroker) -> None:
    host.send(9, (0, host.batch(b"a")))
    host.send(9, (0, host.batch(b"b")), acks=1)
    assert host.answers() == []
    host.server.run(100)
    assert host.answers() == [(0, 0), (0, 1)]


def test_a_closed_producer_affects_no_other(host: ProduceBroker) -> None:
    host.send(9, (0, host.batch(b"a")))
    host.producer.link.end()
    host.server.run(1000)
    assert host.partition.log.synced_offset == 1
    assert host.producer.link.frames() == []


# Time.


def test_the_broker_stamps_records_where_the_topic_says_so(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview]
) -> None:
    host = ProduceBroker(make_server, make_batch, message_timestamp_type="LogAppendTime")
    now_ms = host.server.broker.clock.wall_ms()
    host.send(9, (0, make_batch(b"a", timestamp=5)), acks=1)
    (reply,) = host.producer.replies()
    assert reply.responses[0].partition_responses[0].log_append_time_ms == now_ms
    ((_, header),) = walk(host.partition.log.read_batches(0, 1000))
    assert header.is_append_time
    assert header.max_timestamp == now_ms


def test_else_the_records_keep_their_own_time(host: ProduceBroker) -> None:
    host.send(9, (0, host.batch(b"a", timestamp=5)), acks=1)
    (reply,) = host.producer.replies()
    assert reply.responses[0].partition_responses[0].log_append_time_ms == -1


# Transactions.


def test_a_transaction_must_be_acknowledged(host: ProduceBroker) -> None:
    with pytest.raises(RemoteError, match="must be acknowledged"):
        host.send(9, (0, host.batch(b"a")), acks=0, transactional_id="me")
    assert host.partition.log.end_offset == 0


def test_records_that_wait_for_the_coordinator_outlive_the_shared_buffer(
    host: ProduceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition may be written at once, the other needs a permission: the buffer may hold another client's bytes
    by then.
    """
    waits: list[Later[Any]] = []

    def ask(*_: Any) -> Later[Any]:
        waits.append(Later())
        if len(waits) == 1:
            waits[0].finish(None)
        return waits[-1]

    monkeypatch.setattr(general_path, "permission_for_batch", ask)
    host.send(9, (0, host.batch(b"mine")), (1, host.batch(b"mine")), transactional_id="me", acks=1)
    host.server.connect().send(host.request(9, (0, host.batch(b"x" * 5000)), topic="lake"), 9)
    waits[1].finish(None)
    assert host.answers() == [(0, 0), (0, 0)]
    for index in (0, 1):
        data = host.server.broker.partitions.get("pond", index).log.read_batches(0, 1000)
        assert [record.value for record in decode_batch(data)] == [b"mine"]


def test_a_partition_that_appears_while_the_coordinator_is_asked_takes_no_records(
    host: ProduceBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the coordinator nor the authorizer was asked about this partition."""
    wait: Later[Any] = Later()
    find, absent = general_path._partition_or_absence, {1}

    def find_later(*arguments: Any) -> Any:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if arguments[-1] in absent else find(*arguments)

    monkeypatch.setattr(general_path, "permission_for_batch", lambda *_: wait)
    monkeypatch.setattr(general_path, "_partition_or_absence", find_later)
    host.send(9, (0, host.batch(b"a")), (1, host.batch(b"b")), transactional_id="me", acks=1)
    absent.clear()
    wait.finish(None)
    assert host.answers() == [(0, 0), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert host.server.broker.partitions.get("pond", 1).log.end_offset == 0


# What closes the connection, and ancient versions.


@pytest.mark.parametrize("index", [0, 7])
def test_a_refusal_with_acks_zero_ends_the_connection(host: ProduceBroker, index: int) -> None:
    records = host.batch(b"a")
    records[-1] ^= 1
    with pytest.raises(RemoteError, match="acks=0"):
        host.send(9, (index, records), acks=0)


def test_acks_that_mean_nothing_are_refused(host: ProduceBroker) -> None:
    host.send(9, (0, host.batch(b"a")), (1, host.batch(b"b")), acks=2)
    assert host.answers() == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)] * 2
    assert host.partition.log.end_offset == 0


def old_body(*names: bytes, partitions: int = 2) -> bytes:
    """A request of versions 0-2, with records that are never read."""
    records = b"".join(pack(">ii3s", index, 3, b"xyz") for index in range(partitions))
    topics = (pack(">h", len(name)) + name + pack(">i", partitions) + records for name in names)
    return pack(">hii", 1, 1000, len(names)) + b"".join(topics)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_formats_are_refused_for_each_partition(version: int) -> None:
    response: Any = k00_produce.refuse_old_format(ASKED, version, memoryview(old_body(b"a", b"bc")))
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    time = pack(">q", -1) if version == 2 else b""
    partitions = b"".join(pack(">ihq", index, code, -1) + time for index in (0, 1))
    expected = pack(">i", 2)
    for name in (b"a", b"bc"):
        expected += pack(">h", len(name)) + name + pack(">i", 2) + partitions
    assert response.body == expected + (pack(">i", 0) if version else b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        pack(">hii", 1, 0, 1) + pack(">h1si", 1, b"a", 1) + pack(">ii", 0, -1),
        pack(">hii", 1, 0, 1) + pack(">h1si", 1, b"a", 1) + pack(">i", 0),
        # A name of negative length would move the reader back to where it was, two billion times.
        pack(">hii", 1, 0, (1 << 31) - 1) + pack(">hi", 0, 0) + pack(">hi", -6, 0),
    ],
    ids=["nothing", "negative size", "no size", "negative name"],
)
def test_old_requests_that_cannot_be_are_the_peers_fault(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        k00_produce.refuse_old_format(ASKED, 2, memoryview(body))


@pytest.mark.parametrize("version", range(3))
def test_old_requests_with_acks_zero_get_no_response(version: int) -> None:
    body = pack(">h", 0) + old_body(b"pond")[2:]
    with pytest.raises(RemoteError, match="acks=0"):
        k00_produce.refuse_old_format(ASKED, version, memoryview(body))
