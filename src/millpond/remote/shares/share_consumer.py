"""A member of a share group: it receives records that no other member receives meanwhile, and acknowledges each.

One thread keeps the membership and knows the leaders; each leader has a thread of its own (`leader_thread`). The
methods may be called from any thread.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Final
from uuid import uuid4

from millpond.base.errors import RemoteError
from millpond.base.ids import TopicPartition
from millpond.base.resource import Closable
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.errors import ClientError, ClusterError, LockExpired, LoginFailed, Unreachable
from millpond.remote.shares.held_record import Acknowledgement, HeldRecord, PartitionKey, Verdict
from millpond.remote.shares.leader_session import LeaderSession, Outcome, Settled
from millpond.remote.shares.leader_thread import LeaderThread
from millpond.remote.shares.membership import Membership
from millpond.wire import messages as m

LOG: Final = logging.getLogger("millpond.client")

REFRESH_SECONDS_MIN: Final = 0.1
REFRESH_SECONDS_MAX: Final = 2.0
METADATA_SECONDS: Final = 300.0
PATIENCE_SECONDS: Final = 1.0
"""A restarted node is back in less, which is not worth a warning."""
ANSWER_MS: Final = "10000"
"""Shorter than a member's session: a node that does not answer must not cost the membership."""
EMPTY_ROUNDS: Final = 2
"""The first answer may come before the leader has loaded the state of the partition."""
ROUND_SECONDS_MAX: Final = 1.0
"""How long an expired poll waits for the responses that it asked for."""


class ShareConsumer(Closable):
    """`want` says how many records to hold ready, `poll` takes them.

    With `renews`, locks are renewed until the record is acknowledged; without, a lock lasts as long as the group's
    `share.record.lock.duration.ms`.
    """

    def __init__(self, settings: Mapping[str, str], group: str, topics: Sequence[str], *, renews: bool) -> None:
        self._cluster = Cluster({"request.timeout.ms": ANSWER_MS, **settings})
        self._group = group
        self._topics = list(topics)
        self._renews = renews
        self.member_id = str(uuid4())
        self._membership = Membership(group, self.member_id, topics)
        self._changed = Condition()
        """Guards everything below, and the sessions."""
        self._leaders: dict[int, LeaderThread] = {}
        self._buffer: deque[HeldRecord] = deque()
        self._want = 0
        self._granted = 0
        """Records that leaders may still deliver for requests on their way."""
        self._deadlines: list[float] = []
        """Of the calls of `receive`."""
        self._failure: BaseException | None = None
        self._closing = False
        self._refresh_at = math.inf
        """When to ask for the leaders; not before there is an assignment."""
        self._refresh_pause = REFRESH_SECONDS_MIN
        self._has_ever_joined = False
        self._is_placed = False
        """Whether the current assignment was given to the leaders."""
        self._missing: frozenset[str] = frozenset()
        self._down: tuple[float, ClientError] | None = None
        """Since when the cluster does not answer, and why."""
        self._has_warned = False
        self._warned: set[str] = set()
        self._process = os.getpid()
        self._thread = Thread(target=self._run, name="millpond-share-group", daemon=True)
        self._thread.start()

    # Receiving.

    def want(self, count: int) -> None:
        """Hold up to this many records ready, besides those that were taken."""
        with self._changed:
            if count != self._want:
                self._want = count
                self._changed.notify_all()

    def allow(self, change: int) -> None:
        """Hold this many records more, or fewer, ready. Taking one uses it up."""
        with self._changed:
            self._want += change
            if change > 0:
                self._changed.notify_all()

    def poll(self, records_max: int, timeout_s: float) -> list[HeldRecord]:
        """Wait for a record, then take those that are ready. Raises what ended the consumer."""
        self.check_process()
        with self._changed:
            self._changed.wait_for(self._has_something, timeout_s)
            return self._take(records_max)

    def receive(self, records_max: int, timeout_s: float) -> list[HeldRecord]:
        """The same for a program that holds nothing ready between two calls."""
        self.check_process()
        deadline = time.monotonic() + timeout_s
        taken: list[HeldRecord] = []
        with self._changed:
            begun = {each: each.rounds for each in self._leaders.values()}
            self._want += records_max
            self._deadlines.append(deadline)
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(self._has_something, timeout_s):
                    # What leaders deliver now would wait for the next call with its locks running.
                    self._changed.wait_for(
                        lambda: self._has_something() or self._is_asked_out(begun), ROUND_SECONDS_MAX
                    )
                taken = self._take(records_max)
            finally:
                self._want -= records_max - len(taken)
                self._deadlines.remove(deadline)
        return taken

    def put_back(self, records: Sequence[HeldRecord]) -> None:
        """Return the records taken last, which were not seen."""
        with self._changed:
            self._buffer.extendleft(reversed(records))

    def _has_something(self) -> bool:
        self._skip_lost()
        return bool(self._buffer) or self._failure is not None or self._closing

    def _is_asked_out(self, begun: Mapping[LeaderThread, int]) -> bool:
        readers = self._readers()
        return bool(readers) and not self._granted and all(each.rounds > begun.get(each, -1) for each in readers)

    def _readers(self) -> list[LeaderThread]:
        return [each for each in self._leaders.values() if each.session.has_partitions]

    def _take(self, records_max: int) -> list[HeldRecord]:
        if self._failure is not None:
            raise self._failure
        taken: list[HeldRecord] = []
        while len(taken) < records_max:
            self._skip_lost()
            if not self._buffer:
                break
            taken.append(self._buffer.popleft())
        self._want -= len(taken)
        return taken

    def _skip_lost(self) -> None:
        """Drop the next records if they are no longer held; release them if too little of their locks is left."""
        now = time.monotonic()
        while self._buffer:
            held = self._buffer[0]
            if held.loss is None:
                if self._renews or held.locked_until - now > held.lock_seconds / 2:
                    return
                self._leaders[held.leader].session.acknowledge(
                    Acknowledgement(held.record.offset, Verdict.RELEASE, held)
                )
                self._changed.notify_all()
            self._buffer.popleft()

    # Acknowledging.

    def acknowledge(
        self,
        held: HeldRecord,
        verdict: Verdict,
        *,
        delay_ms: int = 0,
        error_type: str = "",
        error_message: str = "",
    ) -> Future[None]:
        """Send the verdict with the next request to the record's leader; LockExpired if that does not take it."""
        outcome: Future[None] = Future()
        # A caller that no longer waits cannot take the verdict back.
        outcome.set_running_or_notify_cancel()

        def settle(error: ClientError | None) -> None:
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        acknowledgement = Acknowledgement(
            held.record.offset, verdict, held, delay_ms, error_type, error_message, settle
        )
        with self._changed:
            refusal = self._refusal(held, verdict)
            if refusal is None:
                self._leaders[held.leader].session.acknowledge(acknowledgement)
                self._changed.notify_all()
        if refusal is not None:
            settle(refusal)
        return outcome

    def _refusal(self, held: HeldRecord, verdict: Verdict) -> ClientError | None:
        if held.loss is not None:
            return LockExpired(f"{held} is no longer held: {held.loss}")
        if held.verdict is not None:
            return ClientError(f"{held} was acknowledged before ({held.verdict.name.lower()}): do it once")
        if verdict is Verdict.RENEW and not self._leaders[held.leader].session.may_renew:
            return ClientError(
                f"{held} cannot be renewed: the broker is too old, or share.renew.acknowledge.enable of the group is "
                "false"
            )
        return LockExpired(f"{held} is no longer held: the queue was closed") if self._closing else None

    # Inspecting.

    @property
    def has_joined(self) -> bool:
        return self._membership.has_joined

    @property
    def missing_topics(self) -> frozenset[str]:
        return self._missing

    def is_drained(self) -> bool:
        """Whether every leader has answered twice in a row that it has nothing."""
        with self._changed:
            # A member that has just joined may have no partition yet.
            readers = self._readers()
            return bool(readers) and self._is_placed and all(each.empty_rounds >= EMPTY_ROUNDS for each in readers)

    def forget_rounds(self) -> None:
        """Count the empty answers from now on."""
        with self._changed:
            for each in self._leaders.values():
                each.empty_rounds = 0

    def down_seconds(self) -> float:
        """How long the cluster has not answered; 0 while it does."""
        down = self._down
        return 0.0 if down is None else time.monotonic() - down[0]

    def down_reason(self) -> str:
        down = self._down
        return "" if down is None else str(down[1])

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientError(
                "this queue was opened before the process was forked, and its threads exist only in the parent: open "
                "another one in the child"
            )

    # Ending.

    def close(self, timeout_s: float = 10.0) -> None:
        """Send the acknowledgements that wait, release the rest and leave the group. Idempotent."""
        if os.getpid() != self._process:
            return
        deadline = time.monotonic() + timeout_s
        with self._changed:
            was_closing, self._closing = self._closing, True
            for each in self._leaders.values():
                each.close(deadline)
            self._changed.notify_all()
        if was_closing:
            return
        ended = [each.join(deadline) for each in self._leaders.values()]
        with self._changed:
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.1))
        if not all(ended):
            LOG.warning(
                "the share group %s does not answer: what was not acknowledged is delivered again", self._group
            )

    # For the leader threads.

    def grant(self) -> int:
        free = self._want - len(self._buffer) - self._granted
        if free <= 0 or self._failure is not None:
            return 0
        # Leaders that have nothing must not keep others from delivering.
        count = max(-(-free // len(self._readers())), 1)
        self._granted += count
        return count

    def give_back(self, count: int) -> None:
        self._granted -= count
        self._changed.notify_all()

    def wait_ms(self, most: int) -> int:
        if not self._deadlines:
            return most
        return max(min(most, round((max(self._deadlines) - time.monotonic()) * 1000)), 0)

    def on_outcome(self, outcome: Outcome) -> None:
        for warning in outcome.warnings:
            self.warn(warning)
        with self._changed:
            self._buffer.extend(outcome.records)
            if outcome.is_stale:
                self._refresh_soon()
            self._changed.notify_all()
        self.on_settled(outcome.settled)
        if outcome.failure is not None:
            self.fail(outcome.failure)

    def on_settled(self, settled: list[Settled]) -> None:
        """Never called with the lock: callbacks may take others."""
        for acknowledgement, error in settled:
            if acknowledgement.on_settled is not None:
                acknowledgement.on_settled(error)
            elif error is not None and acknowledgement.held is not None:
                LOG.warning("%s", error)

    def on_fault(self, fault: ClientError) -> None:
        if self._is_for_good(fault):
            self.fail(fault)
            return
        LOG.debug("%s", fault)
        with self._changed:
            self._refresh_soon()

    def _is_for_good(self, fault: ClientError) -> bool:
        if isinstance(fault, LoginFailed):
            # A node that has just started may not know its users yet.
            return not self._has_ever_joined
        return not isinstance(fault, Unreachable) and not Membership.is_worth_another_try(fault)

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if not self._closing:
                self._failure = self._failure or error
            self._changed.notify_all()

    def _refresh_soon(self) -> None:
        self._refresh_at = min(self._refresh_at, time.monotonic() + self._refresh_pause)
        self._changed.notify_all()

    def warn(self, warning: str) -> None:
        if warning not in self._warned and len(self._warned) < 100:
            self._warned.add(warning)
            LOG.warning("%s", warning)

    # The group's thread.

    def _run(self) -> None:
        try:
            self._keep_membership()
            self._leave()
        except BaseException as bug:
            self.fail(bug)
        finally:
            self._cluster.close()

    def _keep_membership(self) -> None:
        heartbeat_at, pause = 0.0, REFRESH_SECONDS_MIN
        while True:
            now = time.monotonic()
            if now >= heartbeat_at:
                if self._try(self._heartbeat):
                    heartbeat_at, pause = now + max(self._membership.heartbeat_seconds, 0.01), REFRESH_SECONDS_MIN
                else:
                    heartbeat_at, pause = time.monotonic() + pause, min(pause * 2, REFRESH_SECONDS_MAX)
            if self._needs_leaders(time.monotonic()):
                self._try(self._refresh)
            with self._changed:
                if self._closing or self._failure is not None:
                    return
                # Woken early, it looks at everything once more.
                self._changed.wait(max(min(heartbeat_at, self._refresh_at) - time.monotonic(), 0.001))

    def _try(self, action: Callable[[], None]) -> bool:
        """Whether it succeeded. A failure that will not pass ends the consumer."""
        try:
            action()
        except (ClusterError, RemoteError) as fault:
            error = fault if isinstance(fault, ClusterError) else ClusterError(str(fault), retriable=True)
            if self._is_for_good(error):
                self.fail(error)
            elif isinstance(error, Unreachable | LoginFailed):
                self._note_down(error)
            else:
                LOG.debug("%s", error)
            return False
        if self._has_warned:
            LOG.warning("%s is reachable again after %.0f s", self._cluster.bootstrap, self.down_seconds())
        self._down, self._has_warned = None, False
        return True

    def _note_down(self, error: ClientError) -> None:
        if self._down is None:
            self._down = time.monotonic(), error
        elif not self._has_warned and self.down_seconds() >= PATIENCE_SECONDS:
            self._has_warned = True
            LOG.warning("cannot reach %s (%s); retrying until it answers", self._cluster.bootstrap, error)

    def _heartbeat(self) -> None:
        response = self._ask(self._membership.heartbeat())
        before = self._membership.assignment
        error = self._membership.on_response(response)
        if error is not None:
            raise error
        self._has_ever_joined = True
        if self._membership.assignment != before:
            with self._changed:
                self._is_placed = False
                self._refresh_at, self._refresh_pause = 0.0, REFRESH_SECONDS_MIN

    def _ask(self, request: m.ShareGroupHeartbeatRequest) -> m.ShareGroupHeartbeatResponse:
        return self._cluster.ask_coordinator(
            "group", self._group, request, m.ShareGroupHeartbeatResponse, lambda response: response.error_code
        )

    def _leave(self) -> None:
        if (request := self._membership.farewell()) is None:
            return
        deadline = time.monotonic() + 10.0
        with self._changed:
            leaders = list(self._leaders.values())
        for each in leaders:
            # First the sessions: what they still hold must be released as not seen.
            each.join(deadline)
        try:
            self._ask(request)
        except (ClusterError, RemoteError) as fault:
            LOG.debug("leaving the share group %s: %s", self._group, fault)

    # Leaders.

    def _needs_leaders(self, now: float) -> bool:
        with self._changed:
            return self._membership.assignment is not None and now >= self._refresh_at

    def _refresh(self) -> None:
        """Ask who leads, and give every leader its partitions."""
        with self._changed:
            # Set before asking: what is reported meanwhile asks again.
            self._refresh_at = time.monotonic() + METADATA_SECONDS
        try:
            topics = self._cluster.topics_once(self._topics)
        except BaseException:
            self._refresh_later()
            raise
        self._note_missing(topics)
        if not self._place(topics):
            self._refresh_later()

    def _refresh_later(self) -> None:
        with self._changed:
            self._refresh_pause = min(self._refresh_pause * 2, REFRESH_SECONDS_MAX)
            self._refresh_at = time.monotonic() + self._refresh_pause

    def _note_missing(self, topics: Mapping[str, TopicInfo]) -> None:
        self._missing = frozenset(each for each in self._topics if each not in topics)
        for each in sorted(self._missing):
            self.warn(f"waiting for the topic {each}: it does not exist yet")

    def _place(self, topics: Mapping[str, TopicInfo]) -> bool:
        """Whether every assigned partition has a leader."""
        assignment = self._membership.assignment or frozenset()
        infos = {each.topic_id: each for each in topics.values()}
        addresses = self._cluster.addresses()
        placed: dict[int, dict[PartitionKey, TopicPartition]] = {}
        is_whole = not self._missing
        for key in sorted(assignment, key=lambda each: (each[0].int, each[1])):
            info = infos.get(key[0])
            partition = None if info is None else info.partitions.get(key[1])
            if info is None or partition is None or partition.leader not in addresses:
                is_whole = False
                continue
            placed.setdefault(partition.leader, {})[key] = TopicPartition(info.name, key[1])
        with self._changed:
            if self._closing:
                return True
            for leader in placed.keys() - self._leaders.keys():
                session = LeaderSession(leader, self._group, self.member_id, renews=self._renews)
                thread = LeaderThread(leader, addresses[leader], session, self._cluster.connect, self, self._changed)
                self._leaders[leader] = thread
                thread.start()
            for leader, thread in self._leaders.items():
                thread.address = addresses.get(leader, thread.address)
                thread.session.want(placed.get(leader, {}))
            if is_whole:
                self._is_placed, self._refresh_pause = True, REFRESH_SECONDS_MIN
            self._changed.notify_all()
        return is_whole
