"""One member of a share group, for `queue receive`: the only part of it that depends on the client library."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from millpond.base.named_tuple import NamedTuple
from millpond.base.resource import Closable
from millpond.cli.access import Access
from millpond.cli.errors import failed
from millpond.cli.json_lines import Headers
from millpond.wire.kernel.messages import read_headers

if TYPE_CHECKING:
    from confluent_kafka import Message

COMMIT_SECONDS = 15.0


class Verdict(Enum):
    """What a member says of a record. Names are those of the client library."""

    ACCEPT = "accepted"
    RELEASE = "released"
    REJECT = "rejected"


class Received(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    deliveries: int


class QueueMember(Closable):
    """Receives records, and acknowledges them all at once."""

    def __init__(self, access: Access, group: str, topic: str, records_max: int) -> None:
        self._consumer = access.share_consumer(
            {
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": records_max,
                "fetch.wait.max.ms": 500,
            }
        )
        self._consumer.subscribe([topic])
        self._held: list[Message] = []

    def receive(self, records_max: int, seconds: float) -> list[Received]:
        """What comes within this time. The library may have more than asked for: that is released."""
        from confluent_kafka import KafkaException

        assert not self._held, "not acknowledged yet"
        deadline = time.monotonic() + seconds
        while not self._held and (left := deadline - time.monotonic()) > 0:
            try:
                messages = list(self._consumer.poll(min(left, 0.5)))
            except KafkaException as refusal:
                raise failed("Receiving stopped", refusal.args[0]) from None
            for each in messages:
                error = each.error()
                if error is not None:
                    raise failed("Receiving stopped", error)
            self._held = messages[:records_max]
            self._say(messages[records_max:], Verdict.RELEASE)
        return [_received(each) for each in self._held]

    def acknowledge(self, verdict: Verdict) -> None:
        """Fails if the cluster does not confirm it: these records may be delivered again."""
        from confluent_kafka import KafkaException

        count = len(self._held)
        self._say(self._held, verdict)
        self._held = []
        try:
            results = self._consumer.commit_sync(COMMIT_SECONDS)
        except KafkaException as refusal:
            raise failed(f"{count} records may not be {verdict.value}", refusal.args[0]) from None
        for partition, fault in results.items():
            if fault is not None:
                raise failed(f"Records of partition {partition.partition} were not {verdict.value}", fault.args[0])

    def close(self) -> None:
        """Leaves the group; what is still held goes to other members."""
        self._consumer.close()

    def _say(self, messages: list[Message], verdict: Verdict) -> None:
        from confluent_kafka import AcknowledgeType

        for each in messages:
            self._consumer.acknowledge(each, AcknowledgeType[verdict.name])


def _received(message: Message) -> Received:
    key, value = message.key(), message.value()
    assert key is None or isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    return Received(
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        key,
        value,
        [(name, data.encode() if isinstance(data, str) else data) for name, data in read_headers(message)],
        message.delivery_count() or 0,
    )
