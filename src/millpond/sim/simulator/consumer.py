"""The simulator's consumer: it joins a group, polls, processes records, and commits before or after that.

Like real consumers it works on one thread, so it has finished with what it gives up. A crash removes it between two
steps, without any notice to the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.group_member import (
    ClassicMember,
    ConsumerMember,
    GroupMember,
    MemberTimes,
    RebalanceListener,
)
from millpond.sim.clients.isolation import Cursor, PolledRecords, poll
from millpond.sim.clients.requests import (
    COMMIT_VERSION,
    READ_COMMITTED,
    commit_request,
    fetch_offsets,
    fetch_request,
)
from millpond.sim.clients.script import Script, ScriptRunner, Send, Sleep
from millpond.sim.clients.transactions import Fenced, TransactionFailed
from millpond.sim.simulator.actions import AddConsumer
from millpond.sim.simulator.event_log import Story
from millpond.sim.simulator.ledger import ID_HEADER, Handled, Ledger, SentRecord
from millpond.sim.simulator.producer import Producer, SendOptions
from millpond.sim.simulator.transactions import LedgerTransactions
from millpond.sim.world.clock import VirtualClock
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch
from millpond.wire.partitioner import partition_for_key
from millpond.wire.records import Record

TIMES: Final = MemberTimes(session_ms=1_500, rebalance_ms=3_000, heartbeat_ms=200)
JOIN_TIMEOUT_MS: Final = TIMES.rebalance_ms + 2_000
"""How long a request to join may wait for the other members."""
FETCH_VERSION: Final = 11
FETCH_WAIT_MS: Final = 100
FETCH_BYTES: Final = 2_000
IDLE_MS: Final = 20
RETRY_MS: Final = 60
POISON: Final = "poison"
ATTEMPTS_MAX: Final = 3

MakeClient = Callable[[str], ClusterClient]


class Consumer(RebalanceListener):
    """A consumer that can be stopped, killed and started again."""

    def __init__(
        self,
        plan: AddConsumer,
        topic_id: UUID,
        partition_count: Callable[[str], int],
        make_client: MakeClient,
        clock: VirtualClock,
        ledger: Ledger,
        story: Story,
    ) -> None:
        self.plan = plan
        self.name = plan.consumer
        self.incarnation = 0
        self.state = "starting"
        self.cursors: dict[int, Cursor] = {}
        self.member: GroupMember
        self.busy_with: tuple[int, int] | None = None
        """The partition and offset of the record that it is processing."""
        self.crashes_between = False
        self._topic_id = topic_id
        self._partition_count = partition_count
        self._make_client = make_client
        self._clock = clock
        self._ledger = ledger
        self._story = story
        self._releasing: frozenset[int] = frozenset()
        self._is_busy = False
        self._players: list[ScriptRunner] = []
        self._clients: list[ClusterClient] = []
        self._begin()

    # Starting and stopping

    def _begin(self) -> None:
        plan = self.plan
        self.incarnation += 1
        self.state = "running"
        self._releasing = frozenset()
        self.cursors = {}
        self.busy_with = None
        self._is_busy = self.crashes_between = False
        # A request to join waits for the other members: nothing else may queue behind it.
        control, joining, self._data = (self._make_client(self.name) for _ in range(3))
        joining.timeout_ms = JOIN_TIMEOUT_MS
        self._clients = [control, joining, self._data]
        self._poll_count = 0
        self._letters = Producer(self._data, self._clock, self._ledger, self._story)
        self._transactions = LedgerTransactions(self._data, self._clock, self.name)
        kind = ConsumerMember if plan.protocol == "consumer" else ClassicMember
        self.member = kind(
            self._clock,
            control,
            plan.group,
            plan.topic,
            self._topic_id,
            self,
            TIMES,
            instance_id=self.name if plan.is_static else None,
            incarnation=f"{self.name} {self.incarnation}",
        )
        if isinstance(self.member, ClassicMember):
            self.member.join_client = joining
            self.member.is_cooperative = plan.protocol == "cooperative"
        self._players = [ScriptRunner(self._clock, self._run_member()), ScriptRunner(self._clock, self._work())]
        for player in self._players:
            player.start()

    def start(self, plan: AddConsumer) -> bool:
        """Start a new incarnation, perhaps with other options; False while it runs."""
        if self.state == "running":
            return False
        self.plan = plan
        self._begin()
        return True

    def leave(self) -> bool:
        """Leave the group cleanly; False if it is not running."""
        if self.state != "running":
            return False
        self.member.is_leaving = True
        return True

    def crash(self) -> bool:
        if self.state != "running":
            return False
        self._end("crashed")
        self._tell("is killed")
        return True

    def crash_between(self) -> bool:
        """Crash between the two steps of a poll, whenever that comes; False if it is not running."""
        self.crashes_between = True
        return self.state == "running"

    def _end(self, state: str) -> None:
        self.state = state
        self._releasing = frozenset()
        self.busy_with = None
        for player in self._players:
            player.end()
        self._letters.close()
        for client in self._clients:
            client.disconnect()

    def _run_member(self) -> Script[None]:
        yield from self.member.run()
        self._end("stopped")
        self._tell("has stopped" if self.plan.is_static else "has left the group")

    # As the listener of its member

    @property
    def owned(self) -> frozenset[int]:
        return self.member.membership.partitions if self.state == "running" else frozenset()

    def partition_count(self) -> int:
        return self._partition_count(self.plan.topic)

    def on_assigned(self, added: frozenset[int]) -> Script[None]:
        if added:
            self._tell(f"gets {_numbers(added)}, has {_numbers(self.owned)}")
        elif not self.owned:
            self._tell("gets nothing: it is idle")
        yield from ()

    def on_revoked(self, revoked: frozenset[int]) -> Script[None]:
        if not revoked:
            return
        self._releasing = revoked
        while self._is_busy:
            yield Sleep(2)
        if self.plan.commit == "after" and not self.plan.output:
            read = revoked & self.cursors.keys()
            yield from self._commit({index: self.cursors[index].position for index in sorted(read)})
        self._release(revoked)
        self._tell(f"gives up {_numbers(revoked)}, keeps {_numbers(self.owned - revoked)}")

    def on_lost(self) -> None:
        if self.owned:
            self._tell(f"loses {_numbers(self.owned)}: the coordinator removed it from the group")
        self._release(self.owned)

    def _release(self, partitions: frozenset[int]) -> None:
        self._releasing = frozenset()
        for index in partitions:
            self.cursors.pop(index, None)

    # Its work

    def _work(self) -> Script[None]:
        while True:
            mine = self.owned - self._releasing
            if not mine:
                yield Sleep(IDLE_MS)
                continue
            if self.plan.output and not self._transactions.is_ready:
                yield from self._transactions.initialize()
                continue
            new = mine - self.cursors.keys()
            if new:
                yield from self._find_positions(new)
                continue
            polled = yield from self._poll(mine)
            polled = [each for each in polled if each.partition in self.owned - self._releasing]
            if not polled:
                continue
            self._is_busy = True
            yield from self._work_on(polled)
            self._is_busy = False
            self.busy_with = None

    def _find_positions(self, partitions: frozenset[int]) -> Script[None]:
        committed = yield from fetch_offsets(
            self._data, self._clock, self.plan.group, self.plan.topic, partitions, require_stable=True
        )
        for index, offset in committed.items():
            if index in self.owned:
                self.cursors[index] = Cursor(max(offset, 0))
        places = ", ".join(f"{index}:{max(offset, 0)}" for index, offset in sorted(committed.items()))
        self._tell(f"continues at {places}")

    def _poll(self, partitions: frozenset[int]) -> Script[list[PolledRecords]]:
        requested = {index: self.cursors[index].position for index in sorted(partitions)}
        request = fetch_request(
            self.plan.topic,
            requested,
            max_bytes=FETCH_BYTES,
            max_wait_ms=FETCH_WAIT_MS,
            isolation_level=READ_COMMITTED if self.plan.read_committed else 0,
        )
        reply = yield Send(self._data, request, FETCH_VERSION)
        parts = [] if reply is None else [part for topic in reply.responses for part in topic.partitions]
        left = self.plan.poll_max
        polled: list[PolledRecords] = []
        # Each poll begins with another partition, so that one that cannot progress does not starve the others.
        self._poll_count += 1
        for part in sorted(
            parts, key=lambda each: (each.partition_index + self._poll_count) % self.partition_count()
        ):
            cursor = self.cursors.get(part.partition_index)
            if cursor is None or cursor.position != requested.get(part.partition_index):
                continue
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._begin_elsewhere(cursor, part)
            if part.error_code:
                continue
            cursor.high_watermark, cursor.last_stable_offset = part.high_watermark, part.last_stable_offset
            try:
                message = poll(cursor, part, left, read_committed=self.plan.read_committed)
            except CorruptBatch:
                continue
            left -= len(message.records)
            if message.next_offset > cursor.position:
                polled.append(message)
        if not parts or any(part.error_code for part in parts):
            yield Sleep(RETRY_MS)
        return polled

    def _begin_elsewhere(self, cursor: Cursor, part: m.FetchResponse.PartitionData) -> None:
        """Like auto.offset.reset=earliest: skip records that no longer exist."""
        begin = max(part.log_start_offset, 0)
        if cursor.position < begin:
            self._tell(
                f"wants {part.partition_index}:{cursor.position}, but the log begins at {begin}: "
                f"{begin - cursor.position} records were deleted unread"
            )
        else:
            # The log ends before: an unclean leader was elected.
            begin = max(part.high_watermark, begin)
            self._tell(f"wants {part.partition_index}:{cursor.position}, but the log ends at {begin}")
        cursor.position = begin

    def _work_on(self, polled: list[PolledRecords]) -> Script[None]:
        ends = {each.partition: each.next_offset for each in polled}
        has_records = any(each.records for each in polled)
        if self.plan.output and has_records:
            yield from self._copy(polled, ends)
            return
        if self.plan.commit == "before":
            yield from self._commit(ends)
            if has_records:
                yield from self._crash_if_due("after its commit, before its work")
        for taken in polled:
            for record in taken.records:
                self.busy_with = taken.partition, record.offset
                is_done = yield from self.handle(taken.partition, record)
                if not is_done:
                    ends[taken.partition] = record.offset
                    break
            cursor = self.cursors.get(taken.partition)
            if cursor is not None:
                cursor.position = ends[taken.partition]
        if self.plan.commit == "after":
            if has_records:
                yield from self._crash_if_due("after its work, before its commit")
            yield from self._commit(ends)

    def _crash_if_due(self, when: str) -> Script[None]:
        if self.crashes_between:
            self._end("crashed")
            self._tell(f"is killed {when}")
            yield Sleep(0)

    def handle(self, partition: int, record: Record) -> Script[bool]:
        """Whether the record is processed; otherwise the partition does not advance."""
        if self.plan.work_ms:
            yield Sleep(self.plan.work_ms)
        record_id = id_of(record)
        group = self.plan.group
        if (record.value or b"").startswith(POISON.encode()):
            self._ledger.failures[group, record_id] += 1
            tries = self._ledger.failures[group, record_id]
            if self.plan.dead_letters and tries >= ATTEMPTS_MAX:
                yield from self._bury(partition, record, record_id)
                return True
            if tries <= ATTEMPTS_MAX or tries % 10 == 0:
                self._tell(f"cannot process {partition}:{record.offset} (attempt {tries})")
            yield Sleep(RETRY_MS)
            return False
        known = self._ledger.known.setdefault(group, set())
        is_repeat = self.plan.deduplicates and record_id in known
        known.add(record_id)
        self.note_handled(partition, record, is_repeat=is_repeat)
        return True

    def note_handled(self, partition: int, record: Record, *, is_repeat: bool = False) -> None:
        self._ledger.handle(
            Handled(
                self._clock.now_ms,
                self.plan.group,
                self.name,
                self.plan.topic,
                partition,
                record.offset,
                id_of(record),
                is_repeat,
            )
        )

    def _bury(self, partition: int, record: Record, record_id: int) -> Script[None]:
        """Send it to the dead-letter topic, and wait for the acknowledgement."""
        letters = f"{self.plan.topic}.dlq"
        replies: list[SentRecord] = []
        letter = self._ledger.new_record(
            SentRecord(
                0,
                self.name,
                letters,
                0,
                None if record.key is None else record.key.decode(errors="replace"),
                f"{self.plan.topic}-{partition}:{record.offset} failed {ATTEMPTS_MAX} times",
                "all",
                self._clock.now_ms,
                source=record_id,
            )
        )
        self._letters.send(letter, SendOptions(), replies.append)
        while not replies:
            yield Sleep(5)
        self._ledger.given_up.setdefault(self.plan.group, {})[record_id] = letters
        self._tell(f"moves {partition}:{record.offset} to the dead-letter topic and continues")

    def _commit(self, offsets: Mapping[int, int]) -> Script[None]:
        if not offsets:
            return
        request = commit_request(self.member.membership, self.plan.topic, offsets)
        reply = yield Send(self._data, request, COMMIT_VERSION)
        codes = [] if reply is None else [part.error_code for topic in reply.topics for part in topic.partitions]
        refused = next((ErrorCode(code).name for code in codes if code), None)
        if refused is not None:
            self._tell(f"cannot commit: {refused}")

    # Exactly once: input offsets and output records in one transaction

    def _copy(self, polled: list[PolledRecords], ends: dict[int, int]) -> Script[None]:
        output = self.plan.output
        count = self._partition_count(output)
        by_target: dict[int, list[SentRecord]] = {}
        handled: list[tuple[int, Record]] = []
        for taken in polled:
            for record in taken.records:
                self.busy_with = taken.partition, record.offset
                if self.plan.work_ms:
                    yield Sleep(self.plan.work_ms)
                source = id_of(record)
                # An external effect, such as an e-mail, happens now, whatever becomes of the transaction.
                self._ledger.outside.setdefault(self.plan.group, Counter())[source] += 1
                where = f"{taken.partition}:{record.offset}"
                key = where if record.key is None else record.key.decode(errors="replace")
                target = partition_for_key(key.encode(), count)
                value = f"{(record.value or b'').decode(errors='replace')} done"
                made = SentRecord(0, self.name, output, target, key, value, "all", self._clock.now_ms, source=source)
                by_target.setdefault(target, []).append(self._ledger.new_record(made))
                handled.append((taken.partition, record))
        try:
            for target, records in sorted(by_target.items()):
                yield from self._transactions.send(output, target, records)
            yield from self._transactions.commit_offsets(self.member.membership, self.plan.topic, ends)
            yield from self._crash_if_due("with its transaction open")
            yield from self._transactions.end(committed=True)
        except TransactionFailed as failure:
            self._tell(f"aborts its transaction: {failure}")
            yield from self._abort(polled)
            return
        except Fenced:
            self._end("fenced")
            self._tell("is fenced: a newer producer has its transactional id, or its transaction timed out")
            yield Sleep(0)
            return
        self._tell(f"commits a transaction of {len(handled)} records and its offsets")
        for partition, record in handled:
            self.note_handled(partition, record)
        for index, offset in ends.items():
            if index in self.cursors:
                self.cursors[index].position = offset

    def _abort(self, polled: list[PolledRecords]) -> Script[None]:
        try:
            yield from self._transactions.end(committed=False)
        except Fenced:
            yield from self._transactions.initialize()
        # It continues at the committed offsets.
        for taken in polled:
            self.cursors.pop(taken.partition, None)

    def _tell(self, text: str) -> None:
        self._story.tell(self._clock.now_ms, self.name, text)


def id_of(record: Record) -> int:
    """The record's id, set by its producer."""
    return int(dict(record.headers).get(ID_HEADER) or b"0")


def _numbers(partitions: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"
