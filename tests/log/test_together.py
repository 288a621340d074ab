"""Many logs are synced in one call of the system; few, or where there is no such call, one by one."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.log.limits import LogLimits
from millpond.log.partition_log import PartitionLog
from millpond.log.store import LogStore
from millpond.log.together import TOGETHER_FROM, run_tickets
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.entropy import SeededEntropy
from millpond.wire.records import Record, encode_batch
from support.seeds import seeds


def dirty_logs(disk: SimDisk, count: int) -> list[PartitionLog]:
    store = LogStore(disk, "/data", LogLimits(), SeededEntropy(1))
    store.open(0)
    logs = [store.create(TopicPartition("t", number), UUID(int=1)) for number in range(count)]
    for log in logs:
        batch = encode_batch([Record(0, 5, None, b"v")])
        log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=5)
    return logs


def read_back(disk: SimDisk, count: int) -> list[int]:
    store = LogStore(disk, "/data", LogLimits(), SeededEntropy(2))
    report = store.open(0)
    assert not report.failed
    found = [store.get(TopicPartition("t", number)) for number in range(count)]
    return [-1 if log is None else log.end_offset for log in found]


@pytest.mark.parametrize("count", [1, TOGETHER_FROM - 1, TOGETHER_FROM, 40])
@pytest.mark.parametrize("seed", seeds(range(4)))
def test_what_was_synced_survives_a_power_cut(count: int, seed: int) -> None:
    disk = SimDisk(seed)
    tickets = [log.sync_target() for log in dirty_logs(disk, count)]
    assert run_tickets(disk, "/data", tickets) == [None] * count
    disk.crash()
    assert read_back(disk, count) == [1] * count


def test_forty_logs_need_two_calls() -> None:
    disk = SimDisk()
    tickets = [log.sync_target() for log in dirty_logs(disk, 40)]
    calls: list[str] = []
    operation = disk.operation

    def noted(kind: str, *details: object) -> None:
        calls.append(kind)
        operation(kind, *details)

    disk.operation = noted  # type: ignore[method-assign, assignment]
    run_tickets(disk, "/data", tickets)
    assert [kind for kind in calls if "sync" in kind] == ["sync_everything"] * 2


def test_a_failed_sync_fails_every_log_of_the_round() -> None:
    disk = SimDisk()
    tickets = [log.sync_target() for log in dirty_logs(disk, TOGETHER_FROM)]
    disk.fail_syncs()
    errors = run_tickets(disk, "/data", tickets)
    assert len(errors) == TOGETHER_FROM
    assert all(isinstance(error, OSError) for error in errors)


def test_without_such_a_call_each_log_is_synced_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    monkeypatch.setattr(disk, "sync_everything", lambda _path: False)
    tickets = [log.sync_target() for log in dirty_logs(disk, 20)]
    assert run_tickets(disk, "/data", tickets) == [None] * 20
    disk.crash()
    assert read_back(disk, 20) == [1] * 20


def test_a_log_that_was_deleted_meanwhile_fails_alone() -> None:
    disk = SimDisk(3)
    logs = dirty_logs(disk, TOGETHER_FROM)
    tickets = [log.sync_target() for log in logs]
    disk.rename("/data/t-4", "/data/t-4.gone")
    errors = run_tickets(disk, "/data", tickets)
    assert [type(error) for error in errors if error is not None] == [FileNotFoundError]
    assert errors[4] is not None
    disk.crash()
    assert read_back(disk, TOGETHER_FROM) == [1, 1, 1, 1, -1] + [1] * (TOGETHER_FROM - 5)


def test_after_a_failure_each_log_hears_of_its_own_losses() -> None:
    """A sync of everything takes the bytes of logs that were not even in the round."""
    disk = SimDisk()
    logs = dirty_logs(disk, TOGETHER_FROM + 2)
    tickets = [log.sync_target() for log in logs]
    disk.fail_syncs()
    assert None not in run_tickets(disk, "/data", tickets[:TOGETHER_FROM])
    assert None not in run_tickets(disk, "/data", tickets[TOGETHER_FROM:])
