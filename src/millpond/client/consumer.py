"""The consumer: reads topics as a member of a group, or all partitions by itself when it has no group."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

from confluent_kafka import Consumer as RawConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPlace

from millpond.base.ids import TopicPartition
from millpond.client.connection import LOG, common_settings, make
from millpond.client.errors import (
    Closed,
    CommitFailed,
    ConfigError,
    ConsumeFailed,
    Fenced,
    Timeout,
    UnknownTopic,
    advice_on,
)
from millpond.client.message import Message, from_raw

From: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""Where a group begins that has committed nothing yet: an int is a time in milliseconds since 1970."""
Protocol: TypeAlias = Literal["classic", "consumer"]
Places: TypeAlias = list[TopicPartition]
OnRebalance: TypeAlias = Callable[[Places], None]

ANSWER_SECONDS = 15.0
SEEK_SECONDS = 2.0


class ConsumerGiven(TypedDict, total=False):
    """What Consumer takes beside group and topics, for type checkers."""

    bootstrap: str | None
    from_: From
    protocol: Protocol
    instance: str | None
    isolation: Literal["read_committed", "read_uncommitted"]
    session_timeout_s: float
    on_assigned: OnRebalance | None
    on_revoked: OnRebalance | None
    on_lost: OnRebalance | None
    wait_for_topics: bool
    settings: Mapping[str, Any] | None


class Consumer:
    """Reads records in the order of each partition. Used by one thread at a time.

    `poll` hands out records, `commit` commits everything handed out so far. Nothing is committed by itself, so a
    program that commits after its work sees every record at least once. `protocol="consumer"` is the newer group
    protocol (KIP-848), in which the broker assigns. Callbacks run inside `poll` and `close`.
    """

    def __init__(
        self,
        group: str | None = None,
        topics: Sequence[str] = (),
        *,
        bootstrap: str | None = None,
        from_: From = "earliest",
        protocol: Protocol = "classic",
        instance: str | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        session_timeout_s: float = 45.0,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        wait_for_topics: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise ConfigError('topics is a list of at least one name: topics=["orders"]')
        if protocol not in ("classic", "consumer"):
            raise ConfigError(f'protocol is "classic" or "consumer", not {protocol!r}')
        if isinstance(from_, str) and from_ not in ("earliest", "latest"):
            raise ConfigError(f'from_ is "earliest", "latest", a datetime or milliseconds since 1970, not {from_!r}')
        self.group = group
        self.topics = list(topics)
        self._from = from_
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._wait_for_topics = wait_for_topics
        self._handed_out: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._buffer: deque[Message] = deque()
        """Records that came with one handed out by `next`."""
        self._ended: set[TopicPartition] = set()
        """Partitions whose end was reached and from which nothing came since."""
        self._closed = False
        told = _settings(group, from_, protocol, instance, isolation, session_timeout_s)
        self.raw = make(RawConsumer, common_settings(bootstrap) | told | dict(settings or {}))
        if group is None:
            self._assign_all()
        else:
            self.raw.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    # Reading

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Up to `max_records`: waits for the first, then takes what is there. Empty when the time is over."""
        found = self._take(max_records, timeout_s)
        for message in found:
            self._note(message)
        return found

    def batches(self, max_records: int = 500, timeout_s: float = 1.0) -> Iterator[list[Message]]:
        """Lists of records, never empty, for ever."""
        while True:
            if batch := self.poll(max_records, timeout_s):
                yield batch

    def __iter__(self) -> Iterator[Message]:
        """Records, one by one, for ever. `commit` includes the one in hand."""
        while True:
            if message := self.next(1.0):
                yield message

    def next(self, timeout_s: float = 1.0) -> Message | None:
        """The next record; None when none came in time."""
        if not self._buffer:
            self._buffer = deque(self._take(500, timeout_s))
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        self._note(message)
        return message

    # Committing

    def commit(
        self,
        message: Message | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        wait: bool = True,
    ) -> None:
        """Commit what has been handed out, or up to and with one message, or the given next offsets."""
        if self.group is None:
            raise ConfigError("a consumer without a group has nowhere to commit: give it a group")
        self._check_open()
        if message is not None:
            wanted: Mapping[TopicPartition, int] = {
                TopicPartition(message.topic, message.partition): message.offset + 1
            }
        else:
            wanted = self._uncommitted() if offsets is None else offsets
        if not wanted:
            return
        places = [RawPlace(place.topic, place.partition, offset) for place, offset in wanted.items()]
        try:
            if wait:
                done = self.raw.commit(offsets=places, asynchronous=False)
                failed = next((each.error for each in done or () if each.error is not None), None)
                if failed is not None:
                    raise KafkaException(failed)
            else:
                self.raw.commit(offsets=places, asynchronous=True)
        except KafkaException as fault:
            error = fault.args[0]
            raise CommitFailed(
                f"the positions of group {self.group!r} were not committed: {advice_on(error)}",
                code=error.code(),
                retriable=error.retriable(),
            ) from fault
        self._committed.update(wanted)

    def committed(self, places: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int | None]:
        """The group's committed offsets; None where there is none."""
        asked = self._raw_places(places)
        found = self._ask("the committed offsets", lambda: self.raw.committed(asked, timeout=ANSWER_SECONDS))
        return {_place(each): each.offset if each.offset >= 0 else None for each in found}

    # Moving about

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next record handed out from this partition is the one at `offset`."""
        self._seek([RawPlace(topic, partition, offset)])

    def seek_to_time(self, when: datetime | int, places: Iterable[TopicPartition] | None = None) -> None:
        """To the first record at or after this time; to the end where there is none."""
        self._seek(self._at_time(_milliseconds(when), self._raw_places(places)))

    def seek_to_beginning(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._seek(self._at_bound(self._raw_places(places), 0))

    def seek_to_end(self, places: Iterable[TopicPartition] | None = None) -> None:
        self._seek(self._at_bound(self._raw_places(places), 1))

    def pause(self, places: Iterable[TopicPartition] | None = None) -> None:
        """Hand out nothing from these (all, when none are named) until `resume`. Membership goes on."""
        self.raw.pause(self._raw_places(places))

    def resume(self, places: Iterable[TopicPartition] | None = None) -> None:
        self.raw.resume(self._raw_places(places))

    # Looking

    def assignment(self) -> Places:
        return [_place(each) for each in self.raw.assignment()]

    def position(self, place: TopicPartition) -> int | None:
        """The offset after the last record handed out; None before the first."""
        if place in self._handed_out:
            return self._handed_out[place]
        found: int = self.raw.position([RawPlace(*place)])[0].offset
        return found if found >= 0 else None

    def lag(self) -> dict[TopicPartition, int]:
        """Records between where this consumer is and the end, for each partition it has."""
        places = self.assignment()
        committed = self.committed(places) if self.group is not None and places else {}
        answer: dict[TopicPartition, int] = {}
        for place in places:
            low, high = self._bounds(place)
            at = self.position(place)
            if at is None:
                at = committed.get(place)
            answer[place] = max(high - (low if at is None else max(at, low)), 0)
        return answer

    def _bounds(self, place: TopicPartition) -> tuple[int, int]:
        """The first offset of a partition, and the one after the last."""
        found: tuple[int, int] = self._ask(
            f"the ends of {place.folder}",
            lambda: self.raw.get_watermark_offsets(RawPlace(*place), timeout=ANSWER_SECONDS),
        )
        return found

    def is_at_end(self) -> bool:
        """Whether everything that there is has been handed out, from at least one partition."""
        places = self.raw.assignment()
        return bool(places) and not self._buffer and all(_place(each) in self._ended for each in places)

    def close(self) -> None:
        """Leave the group. Idempotent. Commits nothing."""
        if not self._closed:
            self._closed = True
            self.raw.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # Inside

    def _take(self, max_records: int, timeout_s: float) -> list[Message]:
        self._check_open()
        if max_records < 1:
            raise ConfigError(f"max_records is at least 1, not {max_records}")
        if self._buffer:
            return [self._buffer.popleft() for _ in range(min(max_records, len(self._buffer)))]
        deadline = time.monotonic() + timeout_s
        while True:
            # librdkafka's batch call waits until the batch is full; wait for one record, then take what is there.
            first = self.raw.poll(max(deadline - time.monotonic(), 0.0))
            raws = [first] if first is not None else []
            if raws and max_records > 1:
                raws += self.raw.consume(max_records - 1, timeout=0)
            found = [from_raw(raw) for raw in raws if not self._is_event(raw)]
            if found or time.monotonic() >= deadline:
                return found

    def _is_event(self, raw: RawMessage) -> bool:
        """Whether this is no record but news; raises when the consumer cannot go on."""
        place = TopicPartition(raw.topic() or "", raw.partition() or 0)
        error = raw.error()
        if error is None:
            self._ended.discard(place)
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended.add(place)
            return True
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            if not self._wait_for_topics:
                raise UnknownTopic(f"{error.str()}: create the topic first, or say wait_for_topics=True")
            LOG.warning("waiting for a topic: %s", error.str())
            return True
        if error.code() in (KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID):
            raise Fenced(advice_on(error), code=error.code())
        if error.fatal() or error.code() in _HOPELESS:
            raise ConsumeFailed(advice_on(error), code=error.code())
        LOG.info("librdkafka goes on after: %s", error.str())
        return True

    def _uncommitted(self) -> dict[TopicPartition, int]:
        return {place: at for place, at in self._handed_out.items() if self._committed.get(place) != at}

    def _note(self, message: Message) -> None:
        self._handed_out[TopicPartition(message.topic, message.partition)] = message.offset + 1

    def _assign_all(self) -> None:
        places: list[RawPlace] = []
        known = self._ask("the topics", lambda: self.raw.list_topics(timeout=ANSWER_SECONDS)).topics
        for topic in self.topics:
            if topic not in known or known[topic].error is not None:
                raise UnknownTopic(f"topic {topic!r} does not exist: create it first")
            places += [RawPlace(topic, partition) for partition in known[topic].partitions]
        self.raw.assign(self._starting(places))

    def _starting(self, places: list[RawPlace]) -> list[RawPlace]:
        """The same places, each with the offset to begin at."""
        match self._from:
            case "earliest":
                return self._at_bound(places, 0)
            case "latest":
                return self._at_bound(places, 1)
            case when:
                return self._at_time(_milliseconds(when), places)

    def _at_bound(self, places: list[RawPlace], bound: int) -> list[RawPlace]:
        """At the first offset (0) or after the last (1), as a number.

        librdkafka looks up a logical offset some time later, and would undo a seek that came in between.
        """
        return [RawPlace(each.topic, each.partition, self._bounds(_place(each))[bound]) for each in places]

    def _assigned(self, raw: RawConsumer, places: list[RawPlace]) -> None:
        if not isinstance(self._from, str):
            committed = self.committed([_place(each) for each in places])
            fresh = self._at_time(
                _milliseconds(self._from), [each for each in places if committed[_place(each)] is None]
            )
            begin = {_place(each): each.offset for each in fresh}
            raw.incremental_assign(
                [
                    RawPlace(each.topic, each.partition, begin.get(_place(each), committed[_place(each)] or 0))
                    for each in places
                ]
            )
        else:
            raw.incremental_assign(places)
        if self._on_assigned:
            self._on_assigned([_place(each) for each in places])

    def _revoked(self, raw: RawConsumer, places: list[RawPlace]) -> None:
        gone = [_place(each) for each in places]
        if self._on_revoked:
            self._on_revoked(gone)
        self._forget(gone)

    def _lost(self, raw: RawConsumer, places: list[RawPlace]) -> None:
        gone = [_place(each) for each in places]
        told = self._on_lost or self._on_revoked
        if told:
            told(gone)
        self._forget(gone)

    def _forget(self, gone: Places) -> None:
        for place in gone:
            self._handed_out.pop(place, None)
            self._committed.pop(place, None)
            self._ended.discard(place)
        self._buffer = deque(each for each in self._buffer if TopicPartition(each.topic, each.partition) not in gone)

    def _seek(self, targets: list[RawPlace]) -> None:
        self._forget([_place(each) for each in targets])
        for each in targets:
            self._seek_one(each, time.monotonic() + SEEK_SECONDS)
            self._handed_out[_place(each)] = each.offset

    def _seek_one(self, target: RawPlace, deadline: float) -> None:
        while True:
            try:
                return self.raw.seek(target)
            except KafkaException as fault:
                # Just after an assignment the partition is not being fetched yet.
                if fault.args[0].code() == KafkaError._STATE and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                raise ConsumeFailed(
                    f"cannot seek in {target.topic}[{target.partition}]: {advice_on(fault.args[0])}; only an "
                    "assigned partition can be sought in: poll until it is"
                ) from fault

    def _at_time(self, when_ms: int, places: list[RawPlace]) -> list[RawPlace]:
        if not places:
            return []
        asked = [RawPlace(each.topic, each.partition, when_ms) for each in places]
        found: list[RawPlace] = self._ask(
            "the offsets of a time", lambda: self.raw.offsets_for_times(asked, timeout=ANSWER_SECONDS)
        )
        return [
            RawPlace(each.topic, each.partition, each.offset if each.offset >= 0 else self._bounds(_place(each))[1])
            for each in found
        ]

    def _raw_places(self, places: Iterable[TopicPartition] | None) -> list[RawPlace]:
        return list(self.raw.assignment()) if places is None else [RawPlace(*each) for each in places]

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaException as fault:
            raise Timeout(f"nobody told {what}: {advice_on(fault.args[0])}", code=fault.args[0].code()) from fault

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed: make a new one")


_HOPELESS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.INVALID_GROUP_ID,
    }
)


def _settings(
    group: str | None, from_: From, protocol: Protocol, instance: str | None, isolation: str, session_timeout_s: float
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "group.id": group or "none",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": from_ if isinstance(from_, str) else "earliest",
        "isolation.level": isolation,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    if instance:
        told["group.instance.id"] = instance
    if group is None:
        return told
    if protocol == "consumer":
        # The broker chooses the session's length and the assignor in this protocol.
        del told["partition.assignment.strategy"]
        return told | {"group.protocol": "consumer"}
    session_ms = int(session_timeout_s * 1000)
    return told | {"session.timeout.ms": session_ms, "heartbeat.interval.ms": min(3000, max(session_ms // 3, 1))}


def _place(raw: RawPlace) -> TopicPartition:
    return TopicPartition(raw.topic, raw.partition)


def _milliseconds(when: datetime | int) -> int:
    return when if isinstance(when, int) else int(when.timestamp() * 1000)
