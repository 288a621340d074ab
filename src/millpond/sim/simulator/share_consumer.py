"""The simulator's worker of a queue: a member of a share group that acquires, processes and acknowledges records.

It works on one thread. While it works it may renew its locks. A crash removes it between two steps, and its
connections with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.group_member import MemberTimes, RebalanceListener
from millpond.sim.clients.script import Script, ScriptRunner, Sleep
from millpond.sim.clients.share_member import Acknowledge, HeldRecord, ShareMember, ShareReader
from millpond.sim.simulator.actions import AddShareConsumer
from millpond.sim.simulator.consumer import FETCH_WAIT_MS, IDLE_MS, POISON, id_of
from millpond.sim.simulator.event_log import Story
from millpond.sim.simulator.ledger import Handled, Ledger
from millpond.sim.world.clock import VirtualClock

TIMES: Final = MemberTimes(session_ms=2_500, rebalance_ms=3_000, heartbeat_ms=500)

MakeClient = Callable[[str], ClusterClient]


class ShareConsumer(RebalanceListener):
    """A worker that can be stopped, killed and started again."""

    def __init__(
        self,
        name: str,
        plan: AddShareConsumer,
        topic_id: UUID,
        make_client: MakeClient,
        clock: VirtualClock,
        ledger: Ledger,
        story: Story,
    ) -> None:
        self.plan = plan
        self.name = name
        self.incarnation = 0
        self.state = "starting"
        self.member: ShareMember
        self.held: list[HeldRecord] = []
        """What it has acquired and not acknowledged; it works on the first one."""
        self.crashes_between = False
        self._topic_id = topic_id
        self._make_client = make_client
        self._clock = clock
        self._ledger = ledger
        self._story = story
        self._worker: ScriptRunner
        self._players: list[ScriptRunner] = []
        self._clients: list[ClusterClient] = []
        self._begin()

    # Starting and stopping

    def _begin(self) -> None:
        plan = self.plan
        self.incarnation += 1
        self.state = "running"
        self.held = []
        self.crashes_between = False
        # A fetch waits for records: heartbeats may not queue behind it.
        control, data = (self._make_client(self.name) for _ in range(2))
        self._clients = [control, data]
        self.member = ShareMember(
            self._clock,
            control,
            plan.group,
            plan.topic,
            self._topic_id,
            self,
            TIMES,
            incarnation=f"{self.name} {self.incarnation}",
        )
        self._worker = ScriptRunner(self._clock, self._work(data))
        self._players = [ScriptRunner(self._clock, self._run_member()), self._worker]
        for player in self._players:
            player.start()

    def start(self, plan: AddShareConsumer) -> bool:
        """Start a new incarnation, perhaps with other options; False while it runs."""
        if self.state == "running":
            return False
        self.plan = plan
        self._begin()
        return True

    def leave(self) -> bool:
        """Finish what it works on, return the rest, and leave the group; False if it is not running."""
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
        """Crash between its work and its acknowledgement, whenever that comes."""
        self.crashes_between = True
        return self.state == "running"

    def _end(self, state: str) -> None:
        self.state = state
        self.held = []
        for player in self._players:
            player.end()
        for client in self._clients:
            client.disconnect()

    def _run_member(self) -> Script[None]:
        yield from self.member.run()
        self._end("stopped")
        self._tell("has left the group")

    # As the listener of its member

    @property
    def owned(self) -> frozenset[int]:
        return self.member.membership.partitions if self.state == "running" else frozenset()

    @property
    def busy_with(self) -> tuple[int, int] | None:
        """The partition and offset of the record that it is processing."""
        return (self.held[0].partition, self.held[0].record.offset) if self.held else None

    def on_assigned(self, added: frozenset[int]) -> Script[None]:
        yield from ()

    def on_revoked(self, revoked: frozenset[int]) -> Script[None]:
        """What it holds it may finish, even if it no longer reads that partition."""
        while self.member.is_leaving and not self._worker.is_over:
            yield Sleep(2)

    def on_lost(self) -> None:
        self._tell("the coordinator removed it from the group")

    # Its work

    def _work(self, client: ClusterClient) -> Script[None]:
        while not self.member.membership.member_id:
            yield Sleep(IDLE_MS)
        plan = self.plan
        reader = ShareReader(client, plan.group, self.member.membership.member_id, plan.topic, self._topic_id)
        while not self.member.is_leaving:
            if not self.owned:
                yield Sleep(IDLE_MS)
                continue
            self.held = yield from reader.poll(self.owned, plan.poll_max, FETCH_WAIT_MS)
            delivered = self._ledger.delivered.setdefault(plan.group, Counter())
            delivered.update(id_of(each.record) for each in self.held)
            while self.held and not self.member.is_leaving:
                yield from self._process(reader, self.held[0])
                self.held = self.held[1:]
        yield from reader.close()
        self.held = []

    def _process(self, reader: ShareReader, held: HeldRecord) -> Script[None]:
        where = f"{held.partition}:{held.record.offset}"
        if held.deliveries > 1:
            self._tell(f"receives {where}, delivery {held.deliveries}")
        yield from self._spend_time(reader)
        record_id = id_of(held.record)
        if (held.record.value or b"").startswith(POISON.encode()):
            self._ledger.failures[self.plan.group, record_id] += 1
            self._tell(f"cannot process {where}, releases it")
            yield from self._acknowledge(reader, held, Acknowledge.RELEASE)
            return
        self._ledger.handle(
            Handled(
                self._clock.now_ms,
                self.plan.group,
                self.name,
                self.plan.topic,
                held.partition,
                held.record.offset,
                record_id,
                False,
            )
        )
        if self.crashes_between:
            self._end("crashed")
            self._tell("is killed after its work, before its acknowledgement")
            yield Sleep(0)
        yield from self._acknowledge(reader, held, Acknowledge.ACCEPT)

    def _spend_time(self, reader: ShareReader) -> Script[None]:
        left_ms = self.plan.work_ms
        while left_ms > 0:
            pause_ms = min(left_ms, reader.lock_ms // 2) if self.plan.renews and reader.lock_ms else left_ms
            yield Sleep(pause_ms)
            left_ms -= pause_ms
            if left_ms > 0:
                code = yield from reader.acknowledge(self.held, Acknowledge.RENEW)
                self._tell(f"renews its locks{'' if code is ErrorCode.NONE else f': {code.name}'}")

    def _acknowledge(self, reader: ShareReader, held: HeldRecord, how: Acknowledge) -> Script[None]:
        code = yield from reader.acknowledge([held], how)
        if code is not ErrorCode.NONE:
            self._tell(f"acknowledges {held.partition}:{held.record.offset}, refused: {code.name}")

    def _tell(self, text: str) -> None:
        self._story.tell(self._clock.now_ms, self.name, text)
