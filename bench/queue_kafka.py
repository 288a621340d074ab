"""A share group on plain sockets, for every broker that speaks Kafka's protocol."""

from __future__ import annotations

import time
import uuid
from typing import Any

from bench import raw
from bench.groups import await_coordinator
from bench.load_queue import WAIT_MS
from bench.node import HOST
from millpond.base.ports import Buffer
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.header import encode_request_header
from millpond.wire.records import Record, decode_batch, encode_batch

FETCH_KEY, HEARTBEAT_KEY, METADATA_KEY = 78, 76, 3
HEARTBEAT_VERSION = 1
RECORD_LIMIT = 1
RECORD_LIMIT_FROM = 2
ACCEPT = 1
JOIN_SECONDS_MAX = 30.0
GROUP = "bench"
GROUP_RESOURCE = 32


def _versions(client: raw.RawClient) -> dict[int, int]:
    answer = client.call(m.ApiVersionsRequest(), raw.API_VERSIONS_VERSION)
    assert isinstance(answer, m.ApiVersionsResponse)
    return {each.api_key: each.max_version for each in answer.api_keys}


class Sender:
    def __init__(self, port: int, topic: str, acks: int) -> None:
        self._client = raw.RawClient(HOST, port)
        self.socket = self._client.socket
        self._topic, self._acks = topic, acks
        self._counts: list[int] = []
        await_coordinator(self._client, GROUP)
        _read_from_the_start(self._client)

    def send(self, jobs: list[bytes]) -> None:
        now_ms = time.time_ns() // 1_000_000
        records = encode_batch([Record(place, now_ms, None, job) for place, job in enumerate(jobs)])
        self._client.send(raw.produce_frame(self._topic, 0, records, self._acks))
        self._counts.append(len(jobs))

    def answered(self) -> int:
        raw.check_produced(self._client.receive())
        return self._counts.pop(0)


def _read_from_the_start(client: raw.RawClient) -> None:
    kind = m.IncrementalAlterConfigsRequest
    configs = [
        kind.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest"),
        kind.AlterableConfig(name="share.record.lock.duration.ms", config_operation=0, value="60000"),
    ]
    group = kind.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=configs)
    answer = client.call(kind(resources=[group], validate_only=False), 1)
    assert isinstance(answer, m.IncrementalAlterConfigsResponse)
    if answer.responses[0].error_code:
        raise RuntimeError(f"the group was not configured: {answer.responses[0].error_message}")


class Worker:
    """A member with a share session of one partition."""

    def __init__(self, port: int, topic: str, acks: int) -> None:
        self._client = raw.RawClient(HOST, port)
        self.socket = self._client.socket
        self._beating = raw.RawClient(HOST, port)
        self._version = min(_versions(self._client)[FETCH_KEY], RECORD_LIMIT_FROM)
        self._topic = topic
        self._member_id = str(uuid.uuid4())
        self._topic_id, self._member_epoch = self._joined()
        self._session_epoch = 0
        self._taken: tuple[int, int] | None = None

    def _joined(self) -> tuple[Any, int]:
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        epoch = 0
        while time.monotonic() < deadline:
            answer = self._beat(epoch, [self._topic])
            if not answer.error_code:
                epoch = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    return answer.assignment.topic_partitions[0].topic_id, epoch
            time.sleep(0.1)
        raise TimeoutError(f"the member was assigned nothing: {answer}")

    def _beat(self, epoch: int, topics: list[str] | None) -> Any:
        request = m.ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=self._member_id, member_epoch=epoch, subscribed_topic_names=topics
        )
        return self._beating.call(request, HEARTBEAT_VERSION)

    def keep_alive(self) -> None:
        answer = self._beat(self._member_epoch, None)
        if answer.error_code:
            raise RuntimeError(f"the heartbeat was refused: {answer.error_code} {answer.error_message}")
        self._member_epoch = answer.member_epoch

    def begin(self) -> None:
        self.finish()

    def finish(self) -> None:
        kind = m.ShareFetchRequest
        batches = []
        if self._taken is not None:
            first, last = self._taken
            batches = [kind.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])]
        topics = []
        if batches or not self._session_epoch:
            partition = kind.FetchPartition(partition_index=0, acknowledgement_batches=batches)
            topics = [kind.FetchTopic(topic_id=self._topic_id, partitions=[partition])]
        request = kind(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=self._session_epoch,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=1,
            batch_size=1,
            share_acquire_mode=RECORD_LIMIT,
            is_renew_ack=False,
            topics=topics,
            forgotten_topics_data=[],
        )
        body = encode_request_header(FETCH_KEY, self._version, 1, raw.CLIENT_ID) + request.encode(self._version)
        self._client.send(raw.LENGTH.pack(len(body)) + body)
        self._session_epoch += 1
        self._taken = None

    def received(self) -> list[bytes]:
        answer = raw.decoded(self._client.receive(), FETCH_KEY, self._version)
        assert isinstance(answer, m.ShareFetchResponse)
        if answer.error_code:
            raise RuntimeError(f"the share fetch was refused: {answer.error_code} {answer.error_message}")
        jobs: list[bytes] = []
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code or each.acknowledge_error_code:
                    raise RuntimeError(f"error {each.error_code}, acknowledging {each.acknowledge_error_code}")
                for acquired in each.acquired_records:
                    self._taken = acquired.first_offset, acquired.last_offset
                    jobs += _values(each.records, acquired.first_offset, acquired.last_offset)
        return jobs


def _values(records: Buffer | None, first: int, last: int) -> list[bytes]:
    """A batch comes whole, whatever part of it was acquired."""
    assert records is not None
    found = [each for position, _ in walk(records) for each in decode_batch(records, position)]
    return [bytes(each.value or b"") for each in found if first <= each.offset <= last]
