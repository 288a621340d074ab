"""Members of a share group in process: each has a connection to a broker, and a share session there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millpond.coordinators.shares.keys import SharePartition
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4

GROUP = "g"


def initialize(
    server: Any, topic: str = "pond", index: int = 0, *, group: str = GROUP, start_offset: int = -1
) -> None:
    """Begin the state of a share partition, as the group coordinator does before it assigns the partition."""
    broker = server.broker
    key = SharePartition(group, broker.image.topics[topic].id, index)
    ended: list[None] = []
    broker.share_state.initialize(key, 1, start_offset).then(ended.append)
    server.sim.run_until(lambda: bool(ended), within_ms=5_000)


class Member:
    """A member with version 2 of the protocol. Partitions are those of topic `pond`, unless given with a topic."""

    def __init__(self, server: Any, member_id: str, *, group: str = GROUP, caller: Any = None) -> None:
        self.server = server
        self.member_id = member_id
        self.group = group
        self.caller = caller or server.connect()
        self.epoch = 0

    def fetch_request(
        self,
        *indexes: int,
        acknowledgements: Sequence[tuple[int, int, int]] = (),
        epoch: int | None = None,
        topic: str = "pond",
        **fields: Any,
    ) -> m.ShareFetchRequest:
        """Each acknowledgement is first offset, last offset, and type, of partition 0."""
        kind = m.ShareFetchRequest
        topic_id = self.server.broker.image.topics[topic].id
        named = dict.fromkeys((*indexes, *([0] if acknowledgements else [])))
        given = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "share_acquire_mode": 0,
            **fields,
        }
        request = kind(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[
                kind.FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        kind.FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                kind.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[how]
                                )
                                for first, last, how in acknowledgements
                                if index == 0
                            ],
                        )
                        for index in named
                    ],
                )
            ]
            if named
            else [],
            **given,
        )
        self.epoch += 1
        return request

    def fetch(self, *indexes: int, within_ms: int = 20_000, **fields: Any) -> Any:
        return self.caller.ask(self.fetch_request(*indexes, **fields), 2, within_ms=within_ms)

    def send_fetch(self, *indexes: int, **fields: Any) -> None:
        self.caller.send(self.fetch_request(*indexes, **fields), 2)

    def acknowledge_request(
        self,
        *acknowledgements: tuple[int, int, int],
        epoch: int | None = None,
        index: int = 0,
        is_renewal: bool = False,
        error: tuple[str, str] = ("", ""),
        delay_ms: int = 0,
    ) -> m.ShareAcknowledgeRequest:
        kind = m.ShareAcknowledgeRequest
        error_type, error_message = error
        request = kind(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renewal,
            topics=[
                kind.AcknowledgeTopic(
                    topic_id=self.server.broker.image.topics["pond"].id,
                    partitions=[
                        kind.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                kind.AcknowledgementBatch(
                                    first_offset=first,
                                    last_offset=last,
                                    acknowledge_types=[how],
                                    delay_ms=delay_ms,
                                    error_type=error_type,
                                    error_message=error_message,
                                )
                                for first, last, how in acknowledgements
                            ],
                        )
                    ],
                )
            ]
            if acknowledgements
            else [],
        )
        self.epoch += 1
        return request

    def acknowledge(self, *acknowledgements: tuple[int, int, int], within_ms: int = 20_000, **fields: Any) -> Any:
        return self.caller.ask(self.acknowledge_request(*acknowledgements, **fields), 2, within_ms=within_ms)

    def close(self) -> Any:
        """End the session in order."""
        return self.fetch(epoch=-1, max_wait_ms=0)

    def hang_up(self) -> None:
        self.caller.link.end()


def acquired(response: Any) -> list[tuple[int, int, int]]:
    """First offset, last offset and deliveries of what a response acquired."""
    assert not response.error_code, response.error_message
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in response.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    ]


def values(response: Any) -> list[bytes | None]:
    """The values of the records that a response acquired, in order."""
    found = []
    for topic in response.responses:
        for partition in topic.partitions:
            offsets = {
                offset
                for each in partition.acquired_records
                for offset in range(each.first_offset, each.last_offset + 1)
            }
            data = bytes(partition.records or b"")
            for position, header in walk(data):
                records = decode_batch(data[position : position + header.size])
                found += [each.value for each in records if each.offset in offsets]
    return found


def codes(response: Any) -> list[tuple[int, int]]:
    """Error code and acknowledge error code of each partition of a ShareFetch response."""
    return [
        (partition.error_code, partition.acknowledge_error_code)
        for topic in response.responses
        for partition in topic.partitions
    ]


def results(response: Any) -> list[int]:
    """The error code of each partition of a ShareAcknowledge response."""
    assert not response.error_code, response.error_message
    return [partition.error_code for topic in response.responses for partition in topic.partitions]
