"""What share groups see of the log: transactions, deletion, loss, cold files, and windows with very many gaps."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from tests.broker.shares.test_share_fetch import ShareServer
from tests.support.permissions import permitted
from tests.support.share_members import ACCEPT, RELEASE, acquired, codes, initialize, results, values

from millpond.base.errors import ErrorCode
from millpond.broker.shares import log_reads
from millpond.broker.shares.share_leader import ShareLeader
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state_batches import RecordState, StateBatch
from millpond.log.partition_log import LogRanges
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


class TransactionalServer(ShareServer):
    def write(self, producer_id: int, sequence: int, *values: bytes) -> None:
        log = self.pond.log
        verification = permitted(log.producers, producer_id, 0, sequence, WALL_START_MS)
        batch = self.batch(
            *values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        self.pond.append(batch, zstd=True, verification=verification)

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.pond.append_marker(producer_id, 0, committed, 0, 0)


@pytest.fixture
def pond(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> TransactionalServer:
    return TransactionalServer(make_server, make_batch)


def test_read_uncommitted_sees_everything_but_control_records(pond: TransactionalServer) -> None:
    pond.write(7, 0, b"a")
    pond.end(7, committed=False)
    pond.write(7, 1, b"b")
    response = pond.member("m").fetch(0)
    assert values(response) == [b"a", b"b"]
    assert acquired(response) == [(0, 0, 1), (2, 2, 1)]


def test_read_committed_waits_for_the_end_of_a_transaction(pond: TransactionalServer) -> None:
    pond.configure_group(share_isolation_level="read_committed")
    member = pond.member("m")
    pond.append(b"plain")
    pond.write(7, 0, b"a", b"b")
    pond.append(b"after")
    assert values(member.fetch(0)) == [b"plain"]
    member.send_fetch(max_wait_ms=10_000)
    pond.run(1_000)
    assert member.caller.replies() == []
    pond.end(7, committed=True)
    pond.run(10)
    (response,) = member.caller.replies()
    assert values(response) == [b"a", b"b", b"after"]


def test_read_committed_skips_aborted_records(pond: TransactionalServer) -> None:
    pond.configure_group(share_isolation_level="read_committed")
    pond.write(7, 0, b"aborted")
    pond.write(8, 0, b"committed")
    pond.append(b"plain")
    pond.end(7, committed=False)
    pond.write(7, 1, b"again")
    pond.end(8, committed=True)
    pond.end(7, committed=True)
    member = pond.member("m")
    response = member.fetch(0)
    assert values(response) == [b"committed", b"plain", b"again"]
    assert acquired(response) == [(1, 2, 1), (4, 4, 1)]
    assert results(member.acknowledge((1, 2, ACCEPT), (4, 4, ACCEPT))) == [0]
    # Also the markers are finished: the window is empty.
    leader = pond.server.broker.contexts.data.shares().group("g").leaders[pond.pond.topic_id, 0]
    assert leader.window.in_flight == 0
    pond.append(b"last")
    assert values(member.fetch()) == [b"last"]


def test_only_aborted_records_wake_nobody(pond: TransactionalServer) -> None:
    pond.configure_group(share_isolation_level="read_committed")
    member = pond.member("m")
    member.send_fetch(0, max_wait_ms=5_000)
    for sequence in range(40):
        pond.write(7, sequence, b"aborted")
        pond.end(7, committed=False)
    pond.run(1_000)
    assert member.caller.replies() == []
    pond.append(b"plain")
    pond.run(10)
    (response,) = member.caller.replies()
    assert values(response) == [b"plain"]


def test_deleted_records_are_not_delivered(pond: TransactionalServer) -> None:
    pond.append(b"a")
    pond.append(b"b")
    pond.append(b"c")
    member = pond.member("m")
    assert values(member.fetch(0, max_records=1, share_acquire_mode=1)) == [b"a"]
    pond.pond.delete_before(2)
    assert values(member.fetch()) == [b"c"]
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]
    assert results(member.acknowledge((2, 2, RELEASE))) == [0]
    assert values(member.fetch()) == [b"c"]


def test_an_accepted_record_outlives_a_power_cut(pond: TransactionalServer) -> None:
    """It was delivered before it was synced."""
    pond.append(b"a")
    assert pond.pond.log.synced_offset == 0
    member = pond.member("m")
    member.fetch(0)
    assert results(member.acknowledge((0, 0, ACCEPT))) == [0]
    assert pond.pond.log.synced_offset == 1


def test_state_beyond_the_log_is_ignored(pond: TransactionalServer) -> None:
    pond.append(b"a")
    initialize(pond.server, group="late", start_offset=0)
    key = key_of(pond, "late")
    batches = [StateBatch(0, 0, RecordState.ACKNOWLEDGED, 1), StateBatch(3, 5, RecordState.ACKNOWLEDGED, 1)]
    written: list[None] = []
    pond.server.broker.share_state.write(key, 1, 0, 0, batches).then(written.append)
    pond.server.sim.run_until(lambda: bool(written), within_ms=1_000)
    member = pond.member("m", group="late")
    member.send_fetch(0, max_wait_ms=5_000)
    pond.run(100)
    pond.append(b"b", b"c", b"d")
    pond.run(10)
    (response,) = member.caller.replies()
    assert values(response) == [b"b", b"c", b"d"]
    assert any("reaches beyond the log" in line for line in pond.server.node.journal_lines)


def test_records_at_offsets_that_were_lost_are_not_skipped_later(pond: TransactionalServer) -> None:
    """After a loss the log grows past what the state says. The next leader must not believe the state again."""
    pond.append(b"a")
    initialize(pond.server, group="late", start_offset=0)
    written: list[None] = []
    lost = [StateBatch(4, 5, RecordState.ACKNOWLEDGED, 0)]
    pond.server.broker.share_state.write(key_of(pond, "late"), 1, 0, 3, lost).then(written.append)
    pond.server.sim.run_until(lambda: bool(written), within_ms=5_000)
    member = pond.member("m", group="late")
    assert acquired(member.fetch(0)) == []
    for value in (b"b", b"c", b"d", b"e", b"f", b"g"):
        pond.append(value)
    assert acquired(member.fetch(max_records=1, share_acquire_mode=1)) == [(1, 1, 1)]
    assert results(member.acknowledge((1, 1, ACCEPT))) == [0]
    member.hang_up()
    pond.run(1_000)
    again = pond.member("m", group="late")
    assert values(again.fetch(0)) == [b"c", b"d", b"e", b"f", b"g"]


def test_offsets_can_be_altered_after_a_loss(pond: TransactionalServer) -> None:
    caller = pond.server.connect()
    beat = m.ShareGroupHeartbeatRequest(
        group_id="late", member_id="m", member_epoch=0, subscribed_topic_names=["pond"]
    )
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["late"]), 6)
    assert caller.ask(beat, 1).error_code == 0
    pond.run(1_000)
    beat = m.ShareGroupHeartbeatRequest(group_id="late", member_id="m", member_epoch=-1)
    assert caller.ask(beat, 1).error_code == 0
    pond.append(b"a", b"b")
    kind = m.AlterShareGroupOffsetsRequest

    def alter(start_offset: int) -> None:
        partition = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=start_offset)
        topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name="pond", partitions=[partition])
        response = caller.ask(kind(group_id="late", topics=[topic]), 0)
        assert [each.error_code for each in response.responses[0].partitions] == [0]

    for _ in range(4):
        # Where no record is: the leader begins the state again, at the end of the log.
        alter(7)
        member = pond.member("m", group="late")
        assert acquired(member.fetch(0)) == []
        member.hang_up()
        pond.run(1_000)
        alter(1)
        member = pond.member("m", group="late")
        assert values(member.fetch(0)) == [b"b"]
        member.hang_up()
        pond.run(1_000)


def key_of(pond: ShareServer, group: str) -> SharePartition:
    return SharePartition(group, pond.pond.topic_id, 0)


def test_cold_records_are_read_by_a_worker(pond: TransactionalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pond.append(b"a")
    pond.append(b"b")
    monkeypatch.setattr(log_reads, "cold_ranges", list)
    member = pond.member("m")
    response = member.fetch(0)
    assert values(response) == [b"a", b"b"]
    member.acknowledge((0, 1, RELEASE))
    member.send_fetch(max_wait_ms=5_000)
    member.hang_up()
    pond.run(1_000)
    file = pond.pond.log.segments.active.file
    assert not file.is_held()


def test_an_unreadable_log_is_an_error_of_its_partition(
    pond: TransactionalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pond.append(b"a")
    pond.append(b"b", index=1)

    def fail(*_: object) -> list[Any]:
        raise OSError(5, "no")

    monkeypatch.setattr(log_reads, "_visible_batches", fail)
    response = pond.member("m").fetch(0)
    assert codes(response) == [(ErrorCode.KAFKA_STORAGE_ERROR, 0)]
    assert not pond.pond.log.segments.active.file.is_held()


def test_the_cost_of_a_fetch_does_not_grow_with_the_gaps_of_the_window(pond: TransactionalServer) -> None:
    """A window of 20,000 accepted records, each followed by one that was released, against one of 200."""
    records = [Record(number, WALL_START_MS, None, b"x") for number in range(10)]
    for _ in range(4_000):
        pond.pond.append(memoryview(bytearray(encode_batch(records))), zstd=True)

    def seconds_per_round(group: str, gaps: int) -> float:
        initialize(pond.server, group=group, start_offset=0)
        key = key_of(pond, group)
        batches = [StateBatch(2 * number + 1, 2 * number + 1, RecordState.ACKNOWLEDGED, 0) for number in range(gaps)]
        written: list[None] = []
        pond.server.broker.share_state.write(key, 1, 0, 0, batches).then(written.append)
        pond.server.sim.run_until(lambda: bool(written), within_ms=5_000)
        member = pond.member("m", group=group)
        member.fetch(0, max_records=1, share_acquire_mode=1)
        times = []
        for _ in range(30):
            began = process_time()
            response = member.fetch(max_records=10, share_acquire_mode=1)
            found = acquired(response)
            member.acknowledge(*((first, last, ACCEPT) for first, last, _ in found))
            times.append(process_time() - began)
        return min(times)

    few, many = seconds_per_round("few", 200), seconds_per_round("many", 20_000)
    assert many < 3 * few


def test_acknowledgements_that_overlap_are_refused_before_they_cost_anything(
    pond: TransactionalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is about the whole window: a request of 600 KB would keep the node busy for minutes."""
    records = [Record(number, WALL_START_MS, None, b"x") for number in range(2_000)]
    pond.pond.append(memoryview(bytearray(encode_batch(records))), zstd=True)
    initialize(pond.server, group="gaps", start_offset=0)
    written: list[None] = []
    gaps = [StateBatch(number, number, RecordState.ACKNOWLEDGED, 0) for number in range(1, 2_000, 2)]
    pond.server.broker.share_state.write(key_of(pond, "gaps"), 1, 0, 0, gaps).then(written.append)
    pond.server.sim.run_until(lambda: bool(written), within_ms=5_000)
    member = pond.member("m", group="gaps")
    assert len(acquired(member.fetch(0))) == 300
    calls = 0
    of_leader = ShareLeader.acknowledge

    def count(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return of_leader(*given)

    monkeypatch.setattr(ShareLeader, "acknowledge", count)
    assert results(member.acknowledge(*[(0, 1_998, ACCEPT)] * 100)) == [ErrorCode.INVALID_REQUEST]
    assert calls == 0
    request = member.acknowledge_request((0, 1_998, ACCEPT))
    request.topics = request.topics * 100
    assert results(member.caller.ask(request, 2, within_ms=20_000)) == [ErrorCode.INVALID_REQUEST]
    assert calls == 0
    assert results(member.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT))) == [0]


def test_a_fetch_waits_if_the_log_has_nothing_where_records_should_be(
    pond: TransactionalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction has removed them, or all file descriptors are in use."""
    member = pond.member("m")
    assert values(member.fetch(0, max_wait_ms=0)) == []
    reads = 0

    def read_ranges(offset: int, *_: object, **__: object) -> LogRanges:
        nonlocal reads
        reads += 1
        assert reads < 10, "the fetch reads again and again"
        return LogRanges([], offset)

    with monkeypatch.context() as patch:
        patch.setattr(pond.pond.log, "read_ranges", read_ranges)
        pond.append(b"hidden")
        response = member.fetch(max_wait_ms=500)
        assert values(response) == []
    assert values(member.fetch()) == [b"hidden"]
