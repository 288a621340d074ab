"""The checkers can fail: each is shown evidence of what it is there to find, and sound evidence that it must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import pack
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.clients.reader import PartitionView
from millpond.sim.history.records import (
    Content,
    History,
    Promise,
    SentBatch,
    Sighting,
    Status,
    TopicFacts,
    TopicIdPartition,
)
from millpond.sim.records.checkers import TopicRules, check_folder, check_metadata, check_partition
from millpond.wire import messages as m
from millpond.wire.batch import read_header
from millpond.wire.records import Record, decode_batch, encode_batch

PLACE = TopicIdPartition("t", UUID(int=7), 0)
PLAIN = TopicRules()
COMPACTED = TopicRules(is_compacted=True)


class Evidence:
    """One partition of six records in three batches of producer 5, all acknowledged and all there."""

    def __init__(self) -> None:
        self.history = History()
        self.log: list[bytes] = []
        for number in range(3):
            self.send(number * 2, [f"r{number * 2}", f"r{number * 2 + 1}"])

    def send(self, offset: int, tags: list[str], *, key: bytes | None = None) -> SentBatch:
        contents = tuple(Content(tag, key or tag.encode(), b"value of " + tag.encode(), 1000) for tag in tags)
        batch = SentBatch("p", PLACE, contents, Promise.SURVIVES, producer_id=5, producer_epoch=0, sequence=offset)
        self.history.batches.append(batch)
        self.history.settle(batch, Status.ACKNOWLEDGED, 100, offset)
        self.append(batch, offset)
        return batch

    def append(self, batch: SentBatch, offset: int, *, sequence: int | None = None) -> None:
        records = [record._replace(offset=offset + partition) for partition, record in enumerate(batch.records())]
        self.log.append(
            encode_batch(
                records,
                base_offset=offset,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.sequence if sequence is None else sequence,
            )
        )

    def view(self) -> PartitionView:
        records: dict[int, Record] = {}
        for data in self.log:
            records.update({record.offset: record for record in decode_batch(data)})
        headers = [read_header(data) for data in self.log]
        end = max((header.next_offset for header in headers), default=0)
        return PartitionView(PLACE, position=end, high_watermark=end, records=records, batches=headers)

    def findings(self, rules: TopicRules = PLAIN, view: PartitionView | None = None) -> str:
        return "\n".join(check_partition(self.history, view or self.view(), rules, now_ms=10_000))


@pytest.fixture
def evidence() -> Evidence:
    return Evidence()


@pytest.mark.parametrize("rules", [PLAIN, COMPACTED])
def test_sound_evidence_passes(evidence: Evidence, rules: TopicRules) -> None:
    assert evidence.findings(rules) == ""


def test_a_lost_acknowledged_record_is_found(evidence: Evidence) -> None:
    del evidence.log[2]
    assert "the acknowledged 'r4' at offset 4 is gone" in evidence.findings()


def test_a_lost_record_without_acknowledgement_is_no_violation(evidence: Evidence) -> None:
    del evidence.log[2]
    evidence.history.batches[2].promise = Promise.UNTIL_POWER_CUT
    evidence.history.last_power_cut_ms = 200
    assert evidence.findings() == ""
    evidence.history.last_power_cut_ms = 50
    assert "is gone" in evidence.findings()


def test_another_record_at_an_acknowledged_offset_is_found(evidence: Evidence) -> None:
    other = evidence.send(6, ["x"])
    del evidence.log[2:]
    evidence.append(other, 4)
    assert "offset 4 was acknowledged to be 'r4' and is 'x'" in evidence.findings()


def test_a_record_that_was_never_sent_is_found(evidence: Evidence) -> None:
    del evidence.history.batches[1]
    assert "offset 2 holds 'r2', which was never sent here" in evidence.findings()


def test_a_late_arrival_for_an_earlier_topic_of_the_name_is_no_fault(evidence: Evidence) -> None:
    batch = evidence.history.batches[2]
    batch.partition = PLACE._replace(topic_id=UUID(int=6))
    batch.status = Status.UNKNOWN
    assert "which was never sent here" in evidence.findings()
    batch.uses_topic_name = True
    assert evidence.findings() == ""
    batch.status = Status.ACKNOWLEDGED
    assert "which was never sent here" in evidence.findings()


def test_a_changed_value_is_found_and_a_changed_time_where_the_broker_stamps_is_none(evidence: Evidence) -> None:
    batch = evidence.history.batches[0]
    batch.contents = (batch.contents[0]._replace(timestamp=1), batch.contents[1])
    assert "offset 0 holds" in evidence.findings()
    assert evidence.findings(TopicRules(stamps_append_time=True)) == ""
    batch.contents = (batch.contents[0]._replace(value=b"other"), batch.contents[1])
    assert "offset 0 holds" in evidence.findings(TopicRules(stamps_append_time=True))


def test_a_refused_record_that_is_there_is_found(evidence: Evidence) -> None:
    evidence.history.batches[1].status = Status.REFUSED
    assert "although its write was refused" in evidence.findings()


def test_a_duplicate_is_found(evidence: Evidence) -> None:
    evidence.append(evidence.history.batches[2], 6, sequence=6)
    assert "'r4' is there twice, at 4 and at 6" in evidence.findings()


def test_records_out_of_order_are_found(evidence: Evidence) -> None:
    one, two = evidence.history.batches[:2]
    evidence.log.clear()
    evidence.append(two, 0)
    evidence.append(one, 2)
    one.status = two.status = evidence.history.batches[2].status = Status.UNKNOWN
    assert "producer 5: sequence 0 at 2 follows 3 at 1" in evidence.findings()


def test_a_gap_in_the_sequence_is_found(evidence: Evidence) -> None:
    evidence.append(evidence.send(6, ["x"]), 7, sequence=11)
    assert "sequence 11 at 7 follows 6" in evidence.findings()


def test_a_hole_in_the_offsets_is_found(evidence: Evidence) -> None:
    del evidence.log[1]
    evidence.history.batches[1].status = Status.UNKNOWN
    assert "offsets [2, 3] … are missing" in evidence.findings()


def test_a_reader_that_saw_another_record_after_the_acknowledgement_is_found(evidence: Evidence) -> None:
    seen = evidence.history.seen.setdefault(PLACE, {})
    seen[3] = [Sighting(Content("ghost", None, b"", 1), 90)]
    assert evidence.findings() == ""
    seen[3][0].last_seen_ms = 101
    assert "read as 'ghost'" in evidence.findings()


def test_deleted_records_that_are_back_are_found(evidence: Evidence) -> None:
    evidence.history.deleted_before[PLACE] = 2
    evidence.history.deleted_at_ms[PLACE] = 150
    assert "'r1' at 1 is there again, although all before 2 was deleted" in evidence.findings()
    assert evidence.findings(view=replace(evidence.view(), start_offset=2)) == ""


def test_records_that_retention_took_too_early_are_found(evidence: Evidence) -> None:
    view = replace(evidence.view(), start_offset=2)
    assert evidence.findings(TopicRules(keeps_all_ms=9_000), view) == ""
    assert "taken by retention" in evidence.findings(TopicRules(keeps_all_ms=60_000), view)


def test_compaction_may_take_all_but_the_latest_record_of_a_key(evidence: Evidence) -> None:
    evidence.send(6, ["old"], key=b"k")
    evidence.send(7, ["new"], key=b"k")
    old, new = evidence.log[3], evidence.log[4]
    evidence.log[3:] = [new]
    assert evidence.findings(COMPACTED) == ""
    evidence.log[3:] = [old]
    assert "the latest record of key b'k', 'new' at 7, is gone" in evidence.findings(COMPACTED)


# Metadata


def metadata(topic_id: UUID, partitions: int = 1, code: int = 0) -> m.MetadataResponse:
    return m.MetadataResponse(
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                error_code=code,
                name="t",
                topic_id=topic_id,
                partitions=[m.MetadataResponse.MetadataResponsePartition() for _ in range(partitions)],
            )
        ]
    )


def configs(value: str) -> m.DescribeConfigsResponse:
    entry = m.DescribeConfigsResponse.DescribeConfigsResourceResult(name="retention.ms", value=value)
    return m.DescribeConfigsResponse(
        results=[m.DescribeConfigsResponse.DescribeConfigsResult(resource_name="t", configs=[entry])]
    )


@pytest.mark.parametrize(
    ("told", "value", "finding"),
    [
        (metadata(PLACE.topic_id), "5", None),
        (metadata(PLACE.topic_id, partitions=2), "5", "has 2 partitions"),
        (metadata(PLACE.topic_id), "6", "retention.ms=6"),
        (metadata(UUID(int=8)), "5", "acknowledged was"),
        (metadata(PLACE.topic_id, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "5", "topic t is None"),
        (metadata(UUID(int=9)), "5", "is there again"),
    ],
)
def test_metadata_is_what_was_acknowledged(told: m.MetadataResponse, value: str, finding: str | None) -> None:
    facts = TopicFacts({PLACE.topic_id: None}, {1: None}, {"retention.ms": {"5": None}})
    history = History(topics={"t": facts}, forgotten_ids={UUID(int=9): None})
    findings = check_metadata(history, told, configs(value))
    assert (finding is None) == (not findings)
    assert finding is None or finding in findings[-1] + findings[0]


def test_an_open_outcome_may_be_either(evidence: Evidence) -> None:
    facts = TopicFacts(
        {PLACE.topic_id: None, None: None}, {1: None, 2: None}, {"retention.ms": {"5": None, "6": None}}
    )
    history = History(topics={"t": facts})
    assert check_metadata(history, metadata(PLACE.topic_id, 2), configs("6")) == []
    assert check_metadata(history, metadata(PLACE.topic_id, code=3), configs("6")) == []


# The disk


def folder(evidence: Evidence) -> dict[str, bytes]:
    first, second, third = evidence.log
    size = len(first)
    return {
        "/d/t-0/00000000000000000000.log": first + second,
        "/d/t-0/00000000000000000000.index": pack(">ii", 3, size),
        "/d/t-0/00000000000000000000.timeindex": pack(">qi", 1000, 1),
        "/d/t-0/00000000000000000004.log": third,
        "/d/recovery-point-offset-checkpoint": b"0\n0\n",
    }


def test_a_sound_folder_passes(evidence: Evidence) -> None:
    assert check_folder(folder(evidence), "/d") == []


def _flip(files: dict[str, bytes], name: str, position: int) -> None:
    data = bytearray(files[name])
    data[position] ^= 1
    files[name] = bytes(data)


@pytest.mark.parametrize(
    ("harm", "finding"),
    [
        (lambda files: _flip(files, "/d/t-0/00000000000000000000.log", 70), "CRC"),
        (lambda files: _flip(files, "/d/t-0/00000000000000000000.index", 7), "is not at position"),
        (lambda files: _flip(files, "/d/t-0/00000000000000000000.timeindex", 7), "is not the time"),
        (lambda files: files.pop("/d/t-0/00000000000000000000.log"), None),
        (lambda files: _append(files, "/d/t-0/00000000000000000004.log"), "follow the last whole batch"),
        (lambda files: _append(files, "/d/t-0/00000000000000000000.index"), "no whole entries"),
        (lambda files: _rename(files, 4, 5), "begins at 5, the segment before it ends at 4"),
    ],
)
def test_harm_on_disk_is_found(
    evidence: Evidence, harm: Callable[[dict[str, bytes]], object], finding: str | None
) -> None:
    files = folder(evidence)
    harm(files)
    result = "\n".join(check_folder(files, "/d"))
    assert finding in result if finding else not result


def _append(files: dict[str, bytes], name: str) -> None:
    files[name] += b"abc"


def _rename(files: dict[str, bytes], old: int, new: int) -> None:
    files[f"/d/t-0/{new:020d}.log"] = files.pop(f"/d/t-0/{old:020d}.log")
