"""From a frame to its handler: what is served, what gets an error response, what closes the connection."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, MalformedMessage
from millpond.broker.apis.k18_api_versions import known_answer
from millpond.broker.audit.audit import Audit
from millpond.broker.authorization.required_rights import FREE
from millpond.broker.broker import load_apis
from millpond.broker.context import Contexts
from millpond.broker.requests.api_versions import ApiAnswers
from millpond.broker.requests.replies import UnwritableReply
from millpond.broker.requests.request_counts import RequestCounts
from millpond.broker.security.access import EVERYBODY
from millpond.broker.serving.api import Api
from millpond.broker.serving.dispatch import Dispatcher, UnanswerableRequest, _Entry
from millpond.config.node import node_settings
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header

LENGTH = Struct(">i")


class FrameRecorder:
    """A connection that encodes each reply at once."""

    may_be_node = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.arrived_us = 0
        self.must_log_in = False
        self.may_be_node = True

    def reply(self, outcome: Any, encode: Callable[[Any], Any]) -> None:
        self.frames.append(b"".join(encode(outcome)))

    def reply_frame(self, frame: bytes) -> None:
        self.frames.append(frame)


class StubbedNode:
    def __init__(self) -> None:
        self.broker = SimpleNamespace(
            settings=node_settings({"max.request.topics": "3"}),
            lifecycle=SimpleNamespace(knows_itself=True),
            access=EVERYBODY,
            quotas=SimpleNamespace(is_on=False),
            api_answers=ApiAnswers(),
            controller=SimpleNamespace(applied_offset=5, kraft_version=0, supported={}),
            image=SimpleNamespace(features={}, cluster_id="pond"),
            node_id=1,
            loggers=SimpleNamespace(are_detailed=False),
            audit=Audit(None, VirtualClock(), 1),
        )
        self.dispatcher = Dispatcher(VirtualClock(), load_apis)
        self.broker.apis = self.dispatcher.all_apis
        # One stand-in for all contexts: it has what the handlers under test use of each.
        self.dispatcher.begin(Contexts(*[self.broker] * 5))
        self.dispatcher.load()
        self.recorder = FrameRecorder()

    def handle(self, key: int, version: int, body: bytes = b"") -> list[bytes]:
        frame = encode_request_header(key, version, 77, "me") + body
        self.dispatcher.handle(self.recorder, memoryview(bytearray(frame)))  # type: ignore[arg-type]
        frames, self.recorder.frames = self.recorder.frames, []
        return frames

    def answer(self, key: int, version: int, body: bytes, answered_in: int | None = None) -> Any:
        """The only reply, as a value."""
        (frame,) = self.handle(key, version, body)
        assert LENGTH.unpack_from(frame) == (len(frame) - 4,)
        correlation_id, position = decode_response_header(frame[4:], key, version)
        assert correlation_id == 77
        return m.response_class(key).decode(frame[4:], version if answered_in is None else answered_in, position)[0]

    def serve(self, **parts: Any) -> None:
        """Replace DescribeCluster with an API that the test defines."""
        api = Api(key=60, name="DescribeCluster", versions=(0, 1), rights=FREE, **parts)
        self.dispatcher._entries[60] = _Entry(api.bound(self.dispatcher._contexts))


@pytest.fixture
def stub() -> StubbedNode:
    return StubbedNode()


def test_a_request_goes_to_its_handler_and_is_counted(stub: StubbedNode) -> None:
    reply = stub.answer(18, 0, b"")
    served = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
    assert served == {
        api.key: api.advertised or api.versions for api in stub.dispatcher.all_apis() if api.is_advertised
    }
    assert stub.dispatcher.requests.received[18] == 1


def test_which_apis_there_are_is_written_once_and_anew_when_the_metadata_go_on(stub: StubbedNode) -> None:
    broker: Any = stub.broker
    assert known_answer(broker, broker, 3) is known_answer(broker, broker, 3)
    assert known_answer(broker, broker, 3).body != known_answer(broker, broker, 0).body
    before = known_answer(broker, broker, 3)
    broker.controller.applied_offset = 6
    broker.image.features = {"metadata.version": 27}
    after, _ = m.ApiVersionsResponse.decode(memoryview(known_answer(broker, broker, 3).body), 3, 0, 1000)
    assert known_answer(broker, broker, 3) is not before
    assert (after.finalized_features_epoch, [each.name for each in after.finalized_features]) == (
        6,
        ["metadata.version"],
    )


def test_a_key_that_is_not_served_ends_the_connection(stub: StubbedNode) -> None:
    with pytest.raises(UnanswerableRequest, match="API key 9999"):
        stub.handle(9999, 0)
    assert stub.recorder.frames == []


@pytest.mark.parametrize("version", [-1, 3, 32767])
def test_a_version_that_is_not_served_ends_the_connection(stub: StubbedNode, version: int) -> None:
    stub.serve(handle=lambda *_: pytest.fail("not served"))
    with pytest.raises(UnanswerableRequest, match=f"version {version} is not served, only 0 to 1"):
        stub.handle(60, version)
    assert stub.dispatcher.requests.received[60] == 0


def test_api_versions_answers_a_newer_client_in_the_oldest_words(stub: StubbedNode) -> None:
    reply = stub.answer(18, 99, b"whatever", answered_in=0)
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.min_version, each.max_version) for each in reply.api_keys] == [(18, 0, 5)]


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (None, -1, ErrorCode.NONE),
        ("pond", 1, ErrorCode.NONE),
        ("pond", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("lake", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("pond", -1, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_api_versions_checks_which_broker_the_client_expects(
    stub: StubbedNode, cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    request = m.ApiVersionsRequest(
        client_software_name="rod", client_software_version="2", cluster_id=cluster_id, node_id=node_id
    )
    reply = stub.answer(18, 5, request.encode(5))
    assert reply.error_code == error
    assert bool(reply.api_keys) == (error == ErrorCode.NONE)


def test_api_versions_checks_no_broker_before_the_cluster_id_is_known(stub: StubbedNode) -> None:
    stub.broker.image.cluster_id = None
    assert stub.answer(
        18,
        5,
        m.ApiVersionsRequest(
            client_software_name="rod", client_software_version="2", cluster_id="pond", node_id=2
        ).encode(5),
    ).api_keys


def test_an_api_may_refuse_a_version_in_its_own_words(stub: StubbedNode) -> None:
    def refuse(version: int, body: memoryview) -> Any:
        assert (version, bytes(body)) == (9, b"words")
        return m.DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    stub.serve(handle=lambda *_: pytest.fail("not served"), refuse=refuse)
    # The reply uses the version of the request, which the schema does not have.
    with pytest.raises(UnwritableReply, match="no version 9"):
        stub.handle(60, 9, b"words")


def test_the_short_path_leaves_to_the_handler_what_it_does_not_take(stub: StubbedNode) -> None:
    asked: list[str] = []

    def short(connection: Any, frame: memoryview) -> bool:
        asked.append("short")
        if frame[3] == 0:
            return False
        connection.reply_frame(b"short")
        return True

    def handle(call: Any, request: Any) -> Any:
        asked.append("general")
        return m.DescribeClusterResponse(cluster_id="pond")

    stub.serve(handle=handle, short=short)
    body = m.DescribeClusterRequest().encode(0)
    # The first request establishes that the node knows its cluster; until then none takes the short path.
    for _ in range(2):
        assert stub.answer(60, 0, body).cluster_id == "pond"
    assert stub.handle(60, 1, m.DescribeClusterRequest().encode(1)) == [b"short"]
    assert asked == ["general", "short", "general", "short"]


def test_the_handler_learns_who_asks_and_in_which_version(stub: StubbedNode) -> None:
    calls: list[Any] = []
    stub.serve(handle=lambda metadata, call, _: calls.append((metadata, call)) or m.DescribeClusterResponse())
    stub.handle(60, 1, m.DescribeClusterRequest().encode(1))
    ((metadata, call),) = calls
    assert metadata is stub.broker
    assert (call.connection, call.version, call.client_id) == (stub.recorder, 1, "me")


@pytest.mark.parametrize(("count", "is_served"), [(3, True), (4, False)])
def test_a_request_may_name_only_so_many_topics(stub: StubbedNode, count: int, is_served: bool) -> None:
    entry = stub.dispatcher._entries[3]
    entry.api = Api(
        key=3, name="Metadata", versions=(0, 13), rights=FREE, lists="topics", handle=lambda *_: m.MetadataResponse()
    )
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"topic-{number}") for number in range(count)]
    body = m.MetadataRequest(topics=names).encode(4)
    if is_served:
        assert len(stub.handle(3, 4, body)) == 1
    else:
        with pytest.raises(
            UnanswerableRequest, match=r"with 4 topics or resources exceeds max\.request\.topics \(3\)"
        ):
            stub.handle(3, 4, body)


def test_a_list_that_is_null_is_no_list_too_many(stub: StubbedNode) -> None:
    entry = stub.dispatcher._entries[3]
    entry.api = Api(
        key=3, name="Metadata", versions=(0, 13), rights=FREE, lists="topics", handle=lambda *_: m.MetadataResponse()
    )
    assert len(stub.handle(3, 4, m.MetadataRequest(topics=None).encode(4))) == 1


@pytest.mark.parametrize("body", [b"", b"\0", b"\x7f\xff\xff\xff"])
def test_bytes_that_do_not_decode_are_the_peers_fault(stub: StubbedNode, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        stub.handle(3, 4, body)


def test_a_frame_without_a_whole_header_is_the_peers_fault(stub: StubbedNode) -> None:
    with pytest.raises(MalformedMessage):
        stub.dispatcher.handle(stub.recorder, memoryview(bytearray(b"\0\x12\0")))  # type: ignore[arg-type]


def test_a_request_whose_lists_are_too_long_in_sum_is_not_built(stub: StubbedNode) -> None:
    """It has one topic, but one of its partitions is named many thousand times."""
    stub.broker.settings = node_settings({"max.request.items": "100"})
    partitions = [m.FetchRequest.FetchPartition(partition=0) for _ in range(99)]
    request = m.FetchRequest(topics=[m.FetchRequest.FetchTopic(topic="pond", partitions=partitions)])
    assert m.FetchRequest.decode(request.encode(12), 12, 0, 100)[0] == request
    partitions.append(m.FetchRequest.FetchPartition(partition=0))
    with pytest.raises(MalformedMessage, match=r"topics.partitions: more items in lists than one message may have"):
        stub.handle(1, 12, request.encode(12))
    numbers = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="pond", partitions=[0] * 100)
    with pytest.raises(MalformedMessage, match="more items"):
        stub.handle(24, 3, m.AddPartitionsToTxnRequest(v3_and_below_topics=[numbers]).encode(3))


def test_what_was_answered_is_timed_and_its_errors_are_counted(stub: StubbedNode) -> None:
    response = m.DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    stub.serve(handle=lambda *_: response)
    stub.dispatcher.clock.now_ms = 7  # type: ignore[attr-defined]
    stub.recorder.arrived_us = 2_000
    stub.handle(60, 0, b"\x00\x00")
    assert stub.dispatcher.requests.times[60].sum_us == 5_000
    assert stub.dispatcher.requests.errors == {(60, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE): 1}


def test_errors_are_found_however_deep_they_stand() -> None:
    counts = RequestCounts(VirtualClock(), [0, 3])
    failed = m.ProduceResponse.PartitionProduceResponse(index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    fine = m.ProduceResponse.PartitionProduceResponse(index=1, error_code=0)
    topic = m.ProduceResponse.TopicProduceResponse(name="t", partition_responses=[failed, fine, failed])
    counts.on_answer(0, 0, m.ProduceResponse(responses=[topic]))
    counts.on_answer(0, 0, m.ProduceResponse(responses=[]))
    many = m.ProduceResponse.TopicProduceResponse(name="t", partition_responses=[fine] * 1000 + [failed])
    counts.on_answer(3, 0, m.ProduceResponse(responses=[many] * 1000))
    counts.on_answer(3, 0, m.MetadataResponse(topics=[]))
    assert counts.errors == {(0, ErrorCode.NOT_LEADER_OR_FOLLOWER): 2}
    assert counts.times[0].count == 2
