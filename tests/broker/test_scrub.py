"""Fully replicated records are read again, one partition after the other, during writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millpond.base.later import Later, done
from millpond.broker.replication.failed_replicas import CHECK_BYTES
from millpond.broker.replication.scrub import REST_MS, Scrub
from millpond.sim.world.world import SimWorld

PIECE_MS = 100


def partition(committed: int, *, is_replicated: bool = True) -> Any:
    return SimpleNamespace(
        log=SimpleNamespace(start_offset=0), committed_offset=committed, is_replicated=is_replicated
    )


class ScrubbedNode:
    def __init__(self, *partitions: Any) -> None:
        self.sim = SimWorld()
        self.read: list[tuple[int, int]] = []
        self.partitions = partitions
        self.scrub = Scrub(
            clock=self.sim.start("node").clock,
            partitions=partitions,  # type: ignore[arg-type]
            bytes_per_second=lambda: 1000 * CHECK_BYTES // PIECE_MS,
            check=self._check,
        )
        self.scrub.start()

    def _check(self, partition: Any, offset: int) -> Later[int]:
        self.read.append((self.partitions.index(partition), offset))
        return done(min(offset + 10, partition.committed_offset))


def test_each_is_read_to_its_end_and_then_all_of_them_again() -> None:
    host = ScrubbedNode(partition(15), partition(7, is_replicated=False), partition(5))
    host.sim.run_for(REST_MS + 5 * PIECE_MS)
    assert host.read == [(2, 0), (0, 0), (0, 10)]
    host.sim.run_for(REST_MS)
    assert host.read == [(2, 0), (0, 0), (0, 10)] * 2


def test_one_that_is_written_to_all_the_time_leaves_the_others_their_turn() -> None:
    busy = partition(30)
    host = ScrubbedNode(partition(5), busy)

    def write() -> None:
        busy.committed_offset += 10
        host.sim.clock.call_later(PIECE_MS, write)

    write()
    host.sim.run_for(REST_MS + 300 * PIECE_MS)
    assert (0, 0) in host.read, "the round came to an end"


def test_what_was_cut_back_meanwhile_is_not_waited_for() -> None:
    short = partition(30)
    host = ScrubbedNode(partition(5), short)
    host.sim.run_for(REST_MS)
    short.committed_offset = 5
    host.sim.run_for(3 * PIECE_MS)
    assert host.read == [(1, 0), (0, 0)]
