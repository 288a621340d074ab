"""A transactional producer whose records are in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.sim.clients.client import Client
from millpond.sim.clients.script import Script
from millpond.sim.clients.transactions import TransactionalProducer
from millpond.sim.simulator.ledger import SentRecord, Status
from millpond.sim.simulator.producer import as_records
from millpond.sim.world.clock import VirtualClock


class LedgerTransactions(TransactionalProducer):
    def __init__(self, client: Client, clock: VirtualClock, transactional_id: str) -> None:
        super().__init__(client, transactional_id)
        self._clock = clock
        self._written: list[SentRecord] = []

    def send(self, topic: str, index: int, records: Sequence[SentRecord]) -> Script[None]:
        for record in records:
            record.transaction = self.transactional_id
            record.status, record.attempts = Status.SENT, record.attempts + 1
        self._written += records
        base_offset = yield from self.write(topic, index, as_records(records, self._clock.wall_ms()))
        for delta, record in enumerate(records):
            record.offset = base_offset + delta

    def end(self, *, committed: bool) -> Script[None]:
        yield from super().end(committed=committed)
        written, self._written = self._written, []
        for record in written:
            record.status = Status.ACKNOWLEDGED if committed else Status.REFUSED
            record.settled_ms = self._clock.now_ms
