"""Writes batches of dead letters to their topic, with acks=all: here, or at the node that leads the partition.

The broker writes with its own rights. Who may name the topic was checked when the setting was made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed
from millpond.broker.peers.requester import RequestLost
from millpond.config.node import AUTO_CREATE_TOPICS_ENABLE
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.base.settings import Settings
    from millpond.broker.peers.peers import Peers
    from millpond.broker.replication.partitions import Partitions
    from millpond.metadata.image import Image

PRODUCE_VERSION: Final = 9
ACKS_ALL: Final = -1
COMMIT_MS: Final = 10_000
"""How long letters wait for their commit before they are written again."""
ASK_MS: Final = COMMIT_MS + 2_000


class LetterTarget:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        settings: Callable[[], Settings],
        image: Image,
        create_topic: Callable[[str], Later[m.CreateTopicsResponse | None]],
        partitions: Partitions,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._settings = settings
        self._image = image
        self._create_topic = create_topic
        self._partitions = partitions
        self._peers = peers

    def write(self, topic: str, source_index: int, batch: bytes) -> Later[None]:
        """Ends once the batch is committed, or fails with Refused: then it may be in the log or not.

        All letters of a partition go to one partition, so that they keep their order.
        """
        if topic not in self._image.topics:
            return self._create(topic).chain(lambda _: self._write(topic, source_index, batch))
        return self._write(topic, source_index, batch)

    def _write(self, topic: str, source_index: int, batch: bytes) -> Later[None]:
        known = self._image.topics.get(topic)
        if known is None:
            return failed(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist"))
        if known.is_internal:
            return failed(Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic"))
        index = source_index % len(known.partitions)
        leader = known.partitions[index].leader
        if not self._image.is_active(leader):
            return failed(Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}[{index}] has no leader"))
        if leader == self._node_id:
            return self._append(topic, index, batch)
        return self._send(leader, topic, index, batch)

    def _append(self, topic: str, index: int, batch: bytes) -> Later[None]:
        partition = self._partitions.get(topic, index)
        if partition is None:
            return failed(Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}[{index}] is offline"))
        try:
            appended = partition.append(memoryview(bytearray(batch)), zstd=False, acks_all=True)
        except CorruptBatch as fault:
            raise AssertionError(f"a batch of our own is corrupt: {fault}") from fault
        except Refused as refused:
            return failed(Refused(refused.code, f"{topic}[{index}]: {refused}"))
        written = partition.after_commit(appended.last_offset + 1, None).recover(OSError, _refuse)
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, f"{topic}[{index}] has not committed letters in {COMMIT_MS} ms")
        written.expire_after(self._clock, COMMIT_MS, partial(written.fail, late))
        return written

    def _send(self, leader: int, topic: str, index: int, batch: bytes) -> Later[None]:
        data = m.ProduceRequest.PartitionProduceData(index=index, records=memoryview(batch))
        named = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        request = m.ProduceRequest(acks=ACKS_ALL, timeout_ms=COMMIT_MS, topic_data=[named])

        def check(response: m.ProduceResponse) -> None:
            result = response.responses[0].partition_responses[0]
            if result.error_code:
                code = ErrorCode(result.error_code)
                raise Refused(code, f"{topic}[{index}]: {result.error_message or code.name}")

        return self._peers.ask(leader, request, PRODUCE_VERSION, ASK_MS).map(check).recover(RequestLost, _lost)

    def _create(self, topic: str) -> Later[None]:
        """Create the topic as for a client that asks for it."""
        if not self._settings()[AUTO_CREATE_TOPICS_ENABLE]:
            text = f"topic {topic} does not exist, and auto.create.topics.enable is false: create it"
            return failed(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))

        def check(response: m.CreateTopicsResponse | None) -> None:
            if response is None:
                raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"no controller creates topic {topic}")
            for each in response.topics:
                if each.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise Refused(ErrorCode(each.error_code), f"topic {topic}: {each.error_message}")

        return self._create_topic(topic).map(check)


def _refuse(fault: OSError) -> None:
    raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))


def _lost(lost: RequestLost) -> None:
    raise Refused(ErrorCode.NETWORK_EXCEPTION, str(lost))
