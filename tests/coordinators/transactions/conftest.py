"""A coordinator on a stage: what it writes is committed at once, markers wait until they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from millpond.base.ids import TopicPartition
from millpond.coordinators.shard import CoordinatorRecord, Effects, Request
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard, WriteMarkers
from millpond.wire import messages as m

SETTINGS = TransactionSettings(timeout_ms_max=60_000, id_expiration_ms=1_000_000, expiration_interval_ms=10_000)


class Coordinator:
    def __init__(self) -> None:
        self.log: list[CoordinatorRecord] = []
        self.times: list[int] = []
        self.orders: list[WriteMarkers] = []
        self.ids = count(1000)
        self.has_ids = True
        self.now_ms = 1_000
        self.shard = self._new(0)

    def _new(self, epoch: int) -> TransactionShard:
        return TransactionShard(SETTINGS, epoch, lambda: next(self.ids) if self.has_ids else None, lambda _: 7)

    def reload(self) -> None:
        """The coordinator moves: all that is not in the log is gone."""
        self.shard = self.replayed(self.shard.coordinator_epoch + 1)
        self.orders = []
        self.take(self.shard.on_loaded(self.now_ms))

    def replayed(self, epoch: int = 0) -> TransactionShard:
        shard = self._new(epoch)
        for offset, (at_ms, (key, value)) in enumerate(zip(self.times, self.log, strict=False)):
            shard.set_time(at_ms, at_ms)
            shard.replay(offset, key, value)
        return shard

    def take(self, effects: Effects) -> Effects:
        for record in effects.records:
            self.shard.replay(len(self.log), *record)
            self.log.append(record)
            self.times.append(self.now_ms)
        self.orders += effects.orders
        assert self.replayed().transactions == self.shard.transactions
        return effects

    def ask(self, body: m.Message, version: int) -> Any:
        """The reply, after a trip over the wire in the version that was asked in."""
        effects = self.take(self.shard.step(Request(body, version, "me"), self.now_ms))
        ((request_id, response),) = effects.replies
        assert request_id == "me"
        return type(response).decode(response.encode(version), version)[0]

    def init(
        self, pid: int = -1, epoch: int = -1, name: str | None = "t", timeout: int = 5_000, version: int = 5
    ) -> Any:
        body = m.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout, producer_id=pid, producer_epoch=epoch
        )
        got = self.ask(body, version)
        return got.error_code, got.producer_id, got.producer_epoch

    def add(self, pid: int, epoch: int, *partitions: int, version: int = 3, name: str = "t") -> int:
        """As a client up to version 3, as a broker (transactions v2) from 4 on."""
        if version >= 4:
            return self.add_as_broker(pid, epoch, *partitions, version=version, name=name)
        body = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=pid,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=list(partitions))
            ],
        )
        (topic,) = self.ask(body, version).results_by_topic_v3_and_below
        (error,) = {each.partition_error_code for each in topic.results_by_partition}
        return error

    def add_as_broker(
        self, pid: int, epoch: int, *partitions: int, version: int = 5, name: str = "t", verify: bool = False
    ) -> int:
        topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=list(partitions))]
        body = m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=name, producer_id=pid, producer_epoch=epoch, verify_only=verify, topics=topics
                )
            ]
        )
        (result,) = self.ask(body, version).results_by_transaction
        assert result.transactional_id == name
        (error,) = {
            each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition
        }
        return error

    def end(self, pid: int, epoch: int, committed: bool = True, version: int = 4, name: str = "t") -> Any:
        body = m.EndTxnRequest(transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=committed)
        got = self.ask(body, version)
        return (got.error_code, got.producer_id, got.producer_epoch) if version >= 5 else got.error_code

    def markers(self) -> None:
        """All markers reach their partitions."""
        orders, self.orders = self.orders, []
        for order in orders:
            assert order.partitions
            self.take(
                self.shard.markers_written(
                    order.transactional_id, order.producer_id, order.producer_epoch, self.now_ms
                )
            )

    def pass_time(self, ms: int) -> Effects:
        self.now_ms += ms
        return self.take(self.shard.on_timer(self.now_ms))

    def state(self, name: str = "t") -> str:
        return self.shard.transactions[name].state.label

    def partitions(self, name: str = "t") -> list[TopicPartition]:
        return sorted(self.shard.transactions[name].partitions)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def make_coordinator() -> Callable[[], Coordinator]:
    return Coordinator
