"""The consumer: reads topics as a member of a group, or all partitions by itself when it has no group."""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar
from weakref import WeakSet

from confluent_kafka import Consumer as RawConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from millpond.base.ids import TopicPartition
from millpond.base.resource import Closable
from millpond.client.arguments import named_arguments
from millpond.client.checks import (
    check_callable,
    check_choice,
    check_offsets,
    check_partition,
    check_partitions,
    check_seconds,
    check_session_timeout,
    check_settings,
    check_text,
    check_time,
    check_topics,
    check_whole,
)
from millpond.client.connection import LOG, common_settings, make
from millpond.client.errors import (
    ClientError,
    Closed,
    CommitFailed,
    ConfigError,
    ConsumeFailed,
    Fenced,
    Timeout,
    UnknownTopic,
    advice_on,
)
from millpond.client.message import Message, partition_of
from millpond.client.reachability import Reachability
from millpond.remote.errors import PASSING
from millpond.wire.kernel import read_messages

From: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""Where a group without committed offsets begins; an int is a time in milliseconds since 1970."""
Protocol: TypeAlias = Literal["classic", "consumer"]
Partitions: TypeAlias = list[TopicPartition]
OnRebalance: TypeAlias = Callable[[Partitions], None]

ANSWER_SECONDS = 15.0
SEEK_SECONDS = 2.0
CLASSIC_SESSION_SECONDS: Final = 45.0
REJOIN_PAUSE_SECONDS: Final = 1.0
REJOIN_SECONDS_MAX: Final = 75.0
"""A little more than the default of group.consumer.max.session.timeout.ms."""
NEXT_RECORDS = 500
TAKE_MAX = 100_000
"""Records per call of librdkafka, which refuses more than a million."""
LOOKUP_TRIES = 3
SERVE_SECONDS = 1.0
"""How often a consumer that returns buffered records also polls for rebalances."""

T = TypeVar("T")


class ConsumerKwargs(TypedDict, total=False):
    """Arguments of Consumer besides group and topics, for type checkers."""

    bootstrap: str | None
    """The cluster, as `host:port,host:port`; else `MILLPOND_BOOTSTRAP`, else `127.0.0.1:9092`."""
    from_: From
    """Where a group without committed offsets begins; an int is milliseconds since 1970."""
    from_beginning_topics: Container[str]
    """Topics that such a group always reads from their first record."""
    protocol: Protocol
    """The group protocol; `"consumer"` is the newer one (KIP-848), in which the broker assigns."""
    instance: str | None
    """A name that survives restarts: the group keeps its partitions during a restart."""
    isolation: Literal["read_committed", "read_uncommitted"]
    """Whether to read records of open and aborted transactions."""
    session_timeout_s: float | None
    """How long the group keeps the partitions of a consumer that ended without leaving."""
    on_assigned: OnRebalance | None
    """Called inside `poll` with newly assigned partitions."""
    on_revoked: OnRebalance | None
    """Called inside `poll` and `close` with partitions about to be revoked; it may commit."""
    on_lost: OnRebalance | None
    """Called with partitions that other members may already own; `on_revoked` if not given."""
    wait_for_topics: bool
    """Wait for topics that do not exist yet, instead of raising `UnknownTopic`."""
    settings: Mapping[str, Any] | None
    """Further librdkafka settings, by their librdkafka names."""


class Consumer(Closable):
    """Reads each partition in order. Not thread-safe: use it from one thread at a time.

    `poll` returns records, `commit` commits everything returned so far. Nothing is committed automatically, so a
    program that commits after its work sees every record at least once. `protocol="consumer"` is the newer group
    protocol (KIP-848), in which the broker assigns. Callbacks run inside `poll` and `close`, and may commit in both.
    Without a committed offset the group begins at `from_`, in `from_beginning_topics` always at the first record.

    After `session_timeout_s` (45 s) the group reassigns the partitions of a consumer that ended without leaving; with
    `instance`, a name that survives restarts, the restarted consumer gets them back at once. With
    `protocol="consumer"` the broker decides the session timeout and when an instance may return: `session_timeout_s`
    is refused, and a restarted instance waits until the session of its predecessor has expired.
    """

    @named_arguments("Consumer")
    def __init__(
        self,
        group: str | None = None,
        topics: Sequence[str] = (),
        *,
        bootstrap: str | None = None,
        from_: From = "earliest",
        from_beginning_topics: Container[str] = (),
        protocol: Protocol = "classic",
        instance: str | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        session_timeout_s: float | None = None,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        wait_for_topics: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        _check_names(group, instance)
        check_choice(protocol, "protocol", ("classic", "consumer"))
        check_choice(isolation, "isolation", ("read_committed", "read_uncommitted"))
        check_session_timeout(session_timeout_s, protocol)
        check_from(from_)
        for name, callback in {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}.items():
            if callback is not None:
                check_callable(callback, name)
        if not isinstance(from_beginning_topics, Container):
            raise ConfigError(f"from_beginning_topics is a list of names, not {from_beginning_topics!r:.60}")
        self.group = group
        self.topics = check_topics(topics)
        self._from = from_
        self._from_beginning_topics = from_beginning_topics
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._wait_for_topics = wait_for_topics
        self._handed_out: dict[TopicPartition, int] = {}
        """The offset after the last returned record."""
        self._committed: dict[TopicPartition, int] = {}
        """Offsets known to be committed."""
        self._buffer: deque[Message] = deque()
        """Records fetched from librdkafka and not returned yet."""
        self._buffer_ends: dict[TopicPartition, int] = {}
        """The offset after the last buffered record; may outlive the partition's records."""
        self._revoked_during_poll: set[TopicPartition] = set()
        """Partitions revoked during the current poll; their records are dropped."""
        self._restarts: list[RawPartition] = []
        """Revoked and assigned again during a poll."""
        self._failure: BaseException | None = None
        """What a callback or librdkafka raised, until the caller can get it."""
        self._end_offsets: dict[TopicPartition, int] = {}
        """The end offset of partitions that were read to the end."""
        self._served_at = 0.0
        """When librdkafka was last polled, which runs callbacks."""
        self._start_failure: BaseException | None = None
        """Why the start offset of an assigned partition could not be looked up."""
        self._missing: set[str] = set()
        """Topics that do not exist in the cluster."""
        self.has_joined = False
        """Whether the group has assigned partitions to it, possibly none."""
        self._closing = False
        self._closed = False
        self._instance = instance
        self._has_ever_joined = False
        self._rejoin_at: float | None = None
        """When to rejoin, while the group still has the previous member of this instance."""
        self._rejoin_until: float | None = None
        chosen = common_settings(bootstrap) | _settings(
            group, from_, protocol, instance, isolation, session_timeout_s
        )
        chosen |= {"on_commit": self._on_commit} | check_settings(settings)
        self._is_incremental = (
            chosen.get("group.protocol") == "consumer"
            or chosen.get("partition.assignment.strategy") == "cooperative-sticky"
        )
        """Whether a rebalance changes the assignment rather than replacing it."""
        self.reachability = Reachability(chosen)
        self.is_from_parent = False
        """Created before a fork: its threads and its group membership belong to the parent."""
        self._chosen = chosen | {"error_cb": self.reachability.on_error}
        self._raw = make(RawConsumer, self._chosen, self._note_raised)
        _ALL.add(self)
        if group is None:
            self._assign_all()
        else:
            self._subscribe()

    @property
    def raw(self) -> RawConsumer:
        self.check_process()
        return self._raw

    def check_process(self) -> None:
        if self.is_from_parent:
            raise ClientError(
                "this consumer was created before the process was forked, and its threads exist only in the parent: "
                "create a new one in the child"
            )

    def after_fork(self) -> None:
        if not self.is_from_parent:
            self.is_from_parent = True
            # Never free it here: librdkafka would wait for threads that do not exist in this process, and abort.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._raw))

    # Reading

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Wait for a record, then return up to `max_records` that are available; empty after the timeout."""
        self._check_open()
        check_whole(max_records, "max_records", 1)
        self._fill(min(max_records, TAKE_MAX), check_seconds(timeout_s))
        return self.hand_out(max_records)

    def batches(self, max_records: int = 500, timeout_s: float = 1.0) -> Iterator[list[Message]]:
        """Non-empty lists of records, forever."""
        while True:
            if batch := self.poll(max_records, timeout_s):
                yield batch

    def __iter__(self) -> Iterator[Message]:
        """Records one by one, forever. `commit` includes the current one."""
        while True:
            if message := self.next(1.0):
                yield message

    def next(self, timeout_s: float = 1.0) -> Message | None:
        """The next record, or None after the timeout."""
        self._check_open()
        self._fill(NEXT_RECORDS, check_seconds(timeout_s))
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        self._handed_out[partition_of(message)] = message.offset + 1
        return message

    def look_ahead(self, timeout_s: float = 1.0) -> list[Message]:
        """Wait for a record and return the buffered ones without handing them out."""
        self._check_open()
        self._fill(NEXT_RECORDS, timeout_s)
        return list(self._buffer)

    def hand_out(self, most: int) -> list[Message]:
        """Take buffered records."""
        buffer = self._buffer
        if len(buffer) <= most:
            taken = list(buffer)
            buffer.clear()
            self._handed_out.update(self._buffer_ends)
            self._buffer_ends.clear()
            return taken
        taken = [buffer.popleft() for _ in range(most)]
        # Once for each run of records of one partition, not for each record.
        for each, after in pairwise(taken):
            if each.partition != after.partition or each.topic != after.topic:
                self._handed_out[partition_of(each)] = each.offset + 1
        if taken:
            self._handed_out[partition_of(taken[-1])] = taken[-1].offset + 1
        return taken

    @property
    def fresh_until(self) -> float:
        """Until this monotonic time, records seen ahead may be handed out without polling for rebalances."""
        return self._served_at + SERVE_SECONDS

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return the records handed out last, unread, to the buffer."""
        self._buffer.extendleft(reversed(messages))
        for message in reversed(messages):
            partition = partition_of(message)
            self._handed_out[partition] = message.offset
            self._buffer_ends.setdefault(partition, message.offset + 1)

    # Committing

    def commit(
        self,
        message: Message | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
        wait: bool = True,
    ) -> None:
        """Commit all records returned so far, or up to and including one message, or the given next offsets.

        Without `wait` a failure is only logged; a later `commit` sends again what is not known to be committed.
        """
        if self.group is None:
            raise ConfigError("a consumer without a group has nowhere to commit: give it a group")
        self._check_open()
        if message is not None and not isinstance(message, Message):
            raise ConfigError(f"commit takes a Message, or offsets={{…}}, not {message!r:.60}")
        if message is not None:
            next_offsets = {partition_of(message): message.offset + 1}
        else:
            next_offsets = self._uncommitted() if offsets is None else check_offsets(offsets)
        if not next_offsets:
            return
        raws = [RawPartition(*partition, offset) for partition, offset in next_offsets.items()]
        try:
            if not wait:
                self.raw.commit(offsets=raws, asynchronous=True)
                return
            results = self.raw.commit(offsets=raws, asynchronous=False)
            failed = next((each.error for each in results or () if each.error is not None), None)
            if failed is not None:
                raise KafkaException(failed)
        except KafkaException as fault:
            error = fault.args[0]
            raise CommitFailed(
                f"the offsets of group {self.group!r} were not committed: {advice_on(error)}",
                code=error.code(),
                retriable=error.retriable(),
            ) from fault
        self._committed.update(next_offsets)

    def _on_commit(self, error: KafkaError | None, raws: list[RawPartition]) -> None:
        """The outcome of an asynchronous commit."""
        for each in raws:
            failed = error or each.error
            if failed is not None:
                LOG.warning("the offset of %s was not committed: %s", _name_of(each).folder, advice_on(failed))
            elif _name_of(each) in self._handed_out:
                self._committed[_name_of(each)] = each.offset

    def committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int | None]:
        """The group's committed offsets, or None."""
        raws = self._raws(partitions)
        answer = self._ask("the committed offsets", lambda: self.raw.committed(raws, timeout=ANSWER_SECONDS))
        return {_name_of(each): each.offset if each.offset >= 0 else None for each in answer}

    # Seeking and pausing

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue this partition at `offset`."""
        self._seek([RawPartition(*check_partition((topic, partition)), check_whole(offset, "an offset"))])

    def seek_to_time(self, when: datetime | int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Seek to the first record at or after this time, or to the end if there is none."""
        self._seek(self._at_time(check_time(when, "a time to seek"), self._raws(partitions)))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._seek(self._at_bound(self._raws(partitions), 0))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._seek(self._at_bound(self._raws(partitions), 1))

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return nothing from these partitions (by default all) until `resume` or their reassignment.

        The group membership is kept.
        """
        raws = self._raws(partitions)
        self.raw.pause(raws)
        # Drop what was fetched ahead of `next`; it is fetched again.
        ahead = {partition_of(message): message.offset for message in reversed(self._buffer)}
        self._seek([RawPartition(*_name_of(each), ahead[_name_of(each)]) for each in raws if _name_of(each) in ahead])

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self.raw.resume(self._raws(partitions))

    # Inspecting

    def assignment(self) -> Partitions:
        return [_name_of(each) for each in self.raw.assignment()]

    def position(self, partition: TopicPartition) -> int | None:
        """The offset after the last returned record; None before the first."""
        if partition in self._handed_out:
            return self._handed_out[partition]
        offset: int = self.raw.position([RawPartition(*check_partition(partition))])[0].offset
        return offset if offset >= 0 else None

    def lag(self) -> dict[TopicPartition, int]:
        """Records between this consumer's position and the end, for each assigned partition."""
        partitions = self.assignment()
        # The last record may be followed by a transaction's control record, which is never returned.
        waiting = set(map(partition_of, self._buffer))
        reached = {each: offset for each, offset in self._end_offsets.items() if each not in waiting}
        committed = self.committed(partitions) if self.group is not None and partitions else {}
        lags: dict[TopicPartition, int] = {}
        for partition in partitions:
            low, high = self._bounds(partition)
            at = self.position(partition)
            at = committed.get(partition) if at is None else at
            lags[partition] = max(high - max(low if at is None else at, low, reached.get(partition, low)), 0)
        return lags

    def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset of a partition and the one after the last."""
        bounds: tuple[int, int] = self._ask(
            f"the ends of {partition.folder}",
            lambda: self.raw.get_watermark_offsets(RawPartition(*partition), timeout=ANSWER_SECONDS),
        )
        return bounds

    def is_at_end(self) -> bool:
        """Whether partitions are assigned and all of their records were returned."""
        partitions = self.raw.assignment()
        return (
            bool(partitions) and not self._buffer and all(_name_of(each) in self._end_offsets for each in partitions)
        )

    def is_waiting_for_instance(self) -> bool:
        """Whether the group still has an earlier member with its instance id; a warning was logged."""
        return self._rejoin_until is not None and not self._has_ever_joined

    def missing_topics(self) -> list[str]:
        """Topics that the cluster has reported as missing."""
        return sorted(self._missing)

    def close(self) -> None:
        """Leave the group without committing. Idempotent. Does nothing in a forked child."""
        if self._closing or self.is_from_parent:
            return
        self._closing = True
        try:
            # Callbacks may still commit revoked partitions in here.
            self.raw.close()
        finally:
            self._closed = True
        self._raise_failure()

    # Inside

    def _fill(self, most: int, timeout_s: float) -> None:
        """Wait until the buffer has a record, or until the timeout."""
        if self._start_failure is not None and self._failure is None:
            raise ConsumeFailed(
                f"cannot determine where to begin reading ({self._start_failure}): close this consumer and create a "
                "new one"
            ) from self._start_failure
        now = time.monotonic()
        if self._buffer and now - self._served_at >= SERVE_SECONDS:
            # A slow program would be removed from the group, or delay its rebalance.
            self._poll_librdkafka(1, 0.0)
        deadline = now + timeout_s
        while not self._buffer:
            self._poll_librdkafka(most, max(deadline - time.monotonic(), 0.0))
            if time.monotonic() >= deadline:
                return

    def _poll_librdkafka(self, most: int, timeout_s: float) -> None:
        """Wait for a record and buffer all that are available. Callbacks run in here."""
        if self._rejoin_at is not None:
            left_s = self._rejoin_at - time.monotonic()
            if left_s > 0:
                time.sleep(min(left_s, timeout_s))
                return
            self._rejoin()
        # librdkafka's batch call waits until the batch is full; wait for one record, then take the available ones.
        first = self.raw.poll(timeout_s)
        # Callbacks up to here preceded the record. Later ones may revoke its partition.
        self._revoked_during_poll.clear()
        self._restarts.clear()
        popped = [] if first is None else [first]
        try:
            if popped and most > 1:
                popped += self.raw.consume(most - 1, timeout=0)
        finally:
            self._served_at = time.monotonic()
            self._buffer_records(popped)
        self.reachability.probe()
        self._restart()
        self._raise_failure()

    def _rejoin(self) -> None:
        """Join as a new member: librdkafka gives up for good while its instance id is in use."""
        self._rejoin_at = None
        self._raw.close()
        self._raw = make(RawConsumer, self._chosen, self._note_raised)
        self._subscribe()

    def _is_worth_rejoining(self) -> bool:
        """Whether the member with the instance id may be this program before it was killed."""
        if self._has_ever_joined:
            return False
        now = time.monotonic()
        if self._rejoin_until is None:
            self._rejoin_until = now + REJOIN_SECONDS_MAX
            LOG.warning(
                "the group %s still has a member with the instance id %s: "
                "waiting up to %g s for its session to expire",
                self.group,
                self._instance,
                REJOIN_SECONDS_MAX,
            )
        return now < self._rejoin_until

    def _buffer_records(self, popped: list[RawMessage]) -> None:
        gone = self._revoked_during_poll
        if gone:
            popped = [raw for raw in popped if TopicPartition(raw.topic() or "", raw.partition() or 0) not in gone]
        made: list[Message] = []
        events = read_messages(popped, Message, made)
        self._buffer.extend(made)
        for event in events:
            if isinstance(event, tuple):
                topic, number, end = event
                partition = TopicPartition(topic, number)
                self._buffer_ends[partition] = end
                self._end_offsets.pop(partition, None)
                continue
            try:
                self._handle_event(event, event.error())
            except ClientError as failure:
                # Keep the records behind it for a caller that continues after the failure.
                self._failure = self._failure or failure

    def _restart(self) -> None:
        """Restart partitions that were revoked and reassigned during the poll at their committed offset.

        Which of the polled records came before is unknown, so none of them was buffered.
        """
        held = set(self.assignment()) if self._restarts else set()
        again = [each for each in self._restarts if _name_of(each) in held]
        self._restarts.clear()
        if again:
            if self._is_incremental:
                self.raw.incremental_unassign(again)
            self._assign(again)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _handle_event(self, raw: RawMessage, error: KafkaError) -> None:
        """Handle an event that is not a record; raises if the consumer cannot go on."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._end_offsets[TopicPartition(raw.topic() or "", raw.partition() or 0)] = raw.offset() or 0
            return
        if error.code() in _TOPIC_IS_UNKNOWN:
            self._missing.add(raw.topic() or "")
            if not self._wait_for_topics:
                raise UnknownTopic(f"{error.str()}: create the topic first, or pass wait_for_topics=True")
            LOG.warning("waiting for a topic: %s", error.str())
            return
        if error.code() == KafkaError._FATAL and _INSTANCE_FENCED.str() in error.str():
            error = _INSTANCE_FENCED
        if error.code() == KafkaError._FATAL and _INSTANCE_IN_USE.str() in error.str():
            error = _INSTANCE_IN_USE
        if error.code() == _INSTANCE_IN_USE.code():
            if not self._is_worth_rejoining():
                raise Fenced(advice_on(error), code=error.code())
            self._rejoin_at = time.monotonic() + REJOIN_PAUSE_SECONDS
            return
        if error.code() in (KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID):
            raise Fenced(advice_on(error), code=error.code())
        if error.fatal() or error.code() in _HOPELESS:
            raise ConsumeFailed(advice_on(error), code=error.code())
        LOG.info("librdkafka continues after: %s", error.str())

    def _uncommitted(self) -> dict[TopicPartition, int]:
        return {partition: at for partition, at in self._handed_out.items() if self._committed.get(partition) != at}

    def _subscribe(self) -> None:
        try:
            self.raw.subscribe(self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        except KafkaException as fault:
            self.raw.close()
            raise ConfigError(f"cannot subscribe to {self.topics!r:.200}: {advice_on(fault.args[0])}") from fault

    def _assign_all(self) -> None:
        partitions: list[RawPartition] = []
        topics = self._ask("the topics", lambda: self.raw.list_topics(timeout=ANSWER_SECONDS)).topics
        for topic in self.topics:
            if topic not in topics or topics[topic].error is not None:
                raise UnknownTopic(f"topic {topic!r} does not exist: create it first")
            partitions += [RawPartition(topic, partition) for partition in topics[topic].partitions]
        self.raw.assign(self._starting(partitions))

    def _starting(self, partitions: list[RawPartition]) -> list[RawPartition]:
        """The partitions with the offset to begin at."""
        match self._from:
            case "earliest":
                return self._at_bound(partitions, 0)
            case "latest":
                return self._at_bound(partitions, 1)
            case when:
                return self._at_time(check_time(when, "from_"), partitions)

    def _at_bound(self, partitions: list[RawPartition], bound: int) -> list[RawPartition]:
        """The partitions at their first offset (0) or after the last (1), as a number.

        librdkafka resolves a logical offset later, and would undo a seek in between.
        """
        return [RawPartition(each.topic, each.partition, self._bounds(_name_of(each))[bound]) for each in partitions]

    def _assigned(self, raw: RawConsumer, raws: list[RawPartition]) -> None:
        self.has_joined = self._has_ever_joined = True
        self._missing.difference_update(each.topic for each in raws)
        self._guard(self._assign, raws)
        # librdkafka keeps a pause through a revocation, unlike the caller who paused.
        self._guard(self.raw.resume, raws)
        if self._revoked_during_poll.intersection(map(_name_of, raws)):
            # A non-incremental assignment can only be restarted as a whole.
            again = [each for each in raws if not self._is_incremental or _name_of(each) in self._revoked_during_poll]
            self._restarts += again
            self._revoked_during_poll.update(map(_name_of, again))
        if self._on_assigned:
            self._guard(self._on_assigned, [_name_of(each) for each in raws])

    def _assign(self, raws: list[RawPartition]) -> None:
        # librdkafka starts at the committed offset, else at auto.offset.reset, which is one value for all topics.
        to_look_up = [each for each in raws if not isinstance(self._from, str) or self._is_from_beginning(each)]
        if to_look_up:
            starts = self._starts_with_retries(to_look_up)
            raws = [RawPartition(*_name_of(each), starts.get(_name_of(each), each.offset)) for each in raws]
        if self._is_incremental:
            self.raw.incremental_assign(raws)
        else:
            self.raw.assign(raws)

    def _starts_with_retries(self, raws: list[RawPartition]) -> dict[TopicPartition, int]:
        """The start offsets, retried after a temporary failure."""
        for tries_left in reversed(range(LOOKUP_TRIES)):
            try:
                return self._starts(raws)
            except BaseException as failure:
                if not tries_left or not (isinstance(failure, ClientError) and failure.retriable):
                    # librdkafka would begin at the earliest record: never return those.
                    self._start_failure = failure
                    self._buffer.clear()
                    self._buffer_ends.clear()
                    raise
        raise AssertionError("the last try raises")

    def _starts(self, raws: list[RawPartition]) -> dict[TopicPartition, int]:
        """The committed offsets, else where the group begins."""
        committed = self.committed(map(_name_of, raws))
        fresh = [each for each in raws if committed[_name_of(each)] is None]
        begun = self._at_bound([each for each in fresh if self._is_from_beginning(each)], 0)
        if not isinstance(self._from, str):
            others = [each for each in fresh if not self._is_from_beginning(each)]
            begun += self._at_time(check_time(self._from, "from_"), others)
        starts = {partition: offset for partition, offset in committed.items() if offset is not None}
        return starts | {_name_of(each): each.offset for each in begun}

    def _is_from_beginning(self, raw: RawPartition) -> bool:
        return self._from != "earliest" and raw.topic in self._from_beginning_topics

    def _revoked(self, raw: RawConsumer, raws: list[RawPartition]) -> None:
        self._release(self._on_revoked, raws)

    def _lost(self, raw: RawConsumer, raws: list[RawPartition]) -> None:
        self.has_joined = False
        self._release(self._on_lost or self._on_revoked, raws)

    def _release(self, callback: OnRebalance | None, raws: list[RawPartition]) -> None:
        gone = [_name_of(each) for each in raws]
        if callback:
            self._guard(callback, gone)
        self._revoked_during_poll.update(gone)
        self._forget(gone)

    def _guard(self, callback: Callable[[list[T]], None], partitions: list[T]) -> None:
        """Keep what the callback raises for `poll`: propagated through librdkafka it would lose polled records."""
        try:
            callback(partitions)
        except BaseException as failure:
            self._failure = self._failure or failure

    def _note_raised(self, name: str, failure: BaseException) -> None:
        """The same for callbacks in the settings."""
        self._failure = self._failure or failure

    def _forget(self, gone: Partitions) -> None:
        for partition in gone:
            self._handed_out.pop(partition, None)
            self._committed.pop(partition, None)
            self._end_offsets.pop(partition, None)
            self._buffer_ends.pop(partition, None)
        self._buffer = deque(each for each in self._buffer if partition_of(each) not in gone)

    def _seek(self, targets: list[RawPartition]) -> None:
        self._forget([_name_of(each) for each in targets])
        for each in targets:
            self._seek_one(each, time.monotonic() + SEEK_SECONDS)
            self._handed_out[_name_of(each)] = each.offset

    def _seek_one(self, target: RawPartition, deadline: float) -> None:
        while True:
            try:
                return self.raw.seek(target)
            except KafkaException as fault:
                # Just after an assignment the partition is not fetched yet, or another operation overtakes the seek.
                error = fault.args[0]
                if error.code() in (KafkaError._STATE, KafkaError._OUTDATED) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                text = f"cannot seek in {target.topic}[{target.partition}]: {advice_on(error)}"
                if error.code() in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                    text += "; the partition is not assigned yet: poll until it is, then seek"
                raise ConsumeFailed(text, code=error.code()) from fault

    def _at_time(self, when_ms: int, partitions: list[RawPartition]) -> list[RawPartition]:
        if not partitions:
            return []
        times = [RawPartition(each.topic, each.partition, when_ms) for each in partitions]
        answer: list[RawPartition] = self._ask(
            "the offsets of a time", lambda: self.raw.offsets_for_times(times, timeout=ANSWER_SECONDS)
        )
        for each in answer:
            if each.error is not None:
                raise _lookup_failure(f"the offset of a time in {each.topic}[{each.partition}]", each.error)
        return [
            RawPartition(
                each.topic, each.partition, each.offset if each.offset >= 0 else self._bounds(_name_of(each))[1]
            )
            for each in answer
        ]

    def _raws(self, partitions: Iterable[TopicPartition] | None) -> list[RawPartition]:
        if partitions is None:
            return list(self.raw.assignment())
        return [RawPartition(*each) for each in check_partitions(partitions)]

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaException as fault:
            raise _lookup_failure(what, fault.args[0]) from fault

    def _check_open(self) -> None:
        self.check_process()
        if self._closed:
            raise Closed("this consumer is closed: create a new one")


_ALL: WeakSet[Consumer] = WeakSet()
"""The consumers of this process, for its fork handler."""


def _after_fork() -> None:
    for each in list(_ALL):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_INSTANCE_FENCED = KafkaError(KafkaError.FENCED_INSTANCE_ID)
"""librdkafka reports what ends a consumer as a fatal error; only its text names the cause."""

_INSTANCE_IN_USE = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID)

_HOPELESS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.INVALID_GROUP_ID,
    }
)


_UNANSWERED = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""What librdkafka reports when a lookup was not answered within its timeout."""

_TOPIC_IS_UNKNOWN = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})


def _lookup_failure(what: str, error: KafkaError) -> ClientError:
    """Why the cluster did not return something. `retriable` if it may do so after a moment."""
    code, text = error.code(), f"the cluster did not return {what}: {advice_on(error)}"
    if code in _UNANSWERED:
        return Timeout(text, code=code, retriable=True)
    if code in _TOPIC_IS_UNKNOWN:
        # A new topic may take a moment to be known everywhere.
        return UnknownTopic(text, code=code, retriable=True)
    return ConsumeFailed(text, code=code, retriable=code in PASSING)


def _check_names(group: object, instance: object) -> None:
    if group is not None:
        check_text(group, "group")
        if not group:
            raise ConfigError("group is a name: leave it out to read all partitions without a group")
    if instance is not None:
        check_text(instance, "instance")


def check_from(value: object) -> None:
    if isinstance(value, str):
        if value not in ("earliest", "latest"):
            raise ConfigError(f'from_ is "earliest", "latest", a datetime or milliseconds since 1970, not {value!r}')
    else:
        check_time(value, "from_")


def _settings(
    group: str | None,
    from_: From,
    protocol: Protocol,
    instance: str | None,
    isolation: str,
    session_timeout_s: float | None,
) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "group.id": group or "none",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": from_ if isinstance(from_, str) else "earliest",
        "isolation.level": isolation,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        # With a full queue librdkafka pauses for a second by default, and a reader empties the queue sooner. Checking
        # this often costs 0.2 % of a core, only while the queue is full.
        "fetch.queue.backoff.ms": 20,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    if instance:
        chosen["group.instance.id"] = instance
    if group is None:
        return chosen
    if protocol == "consumer":
        # In this protocol the broker chooses the session timeout and the assignor.
        del chosen["partition.assignment.strategy"]
        return chosen | {"group.protocol": "consumer"}
    session_ms = int((CLASSIC_SESSION_SECONDS if session_timeout_s is None else session_timeout_s) * 1000)
    return chosen | {"session.timeout.ms": session_ms, "heartbeat.interval.ms": min(3000, max(session_ms // 3, 1))}


def _name_of(raw: RawPartition) -> TopicPartition:
    return TopicPartition(raw.topic, raw.partition)
