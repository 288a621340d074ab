"""Invariants of one node, checked in the history of a run. Each check yields a sentence for every violation.

Acknowledged records exist once, in order, at their offsets, with their content. Refused records do not exist.
Sequences have no gaps. Logs on disk are intact byte for byte. Metadata is what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct

from millpond.base.errors import ErrorCode, Refused, RemoteError
from millpond.log.names import LOG, OFFSET_INDEX, TIME_INDEX, offset_name, read_offset_name, read_partition_folder
from millpond.sim.clients.reader import PartitionView
from millpond.sim.history.records import Content, History, Promise, SentBatch, Status, TopicIdPartition
from millpond.wire import messages as m
from millpond.wire.batch import SEQUENCE_COUNT, BatchHeader, check_batch, walk

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


@dataclass(slots=True)
class TopicRules:
    """What a topic's settings allow to happen to its records."""

    is_compacted: bool = False
    stamps_append_time: bool = False
    keeps_all_ms: int | None = None
    """Younger records must exist; None where size limits, deletions or clock jumps may remove any."""


@dataclass(slots=True)
class _Sent:
    """Everything that was sent to one partition, by tag and by producer."""

    batches: list[SentBatch] = field(default_factory=list)
    by_tag: dict[str, tuple[SentBatch, int]] = field(default_factory=dict)
    strays: dict[str, SentBatch] = field(default_factory=dict)
    """Batches for an earlier topic of this name, which may have arrived late."""

    @classmethod
    def to(cls, partition: TopicIdPartition, history: History) -> _Sent:
        sent = cls([batch for batch in history.batches if batch.partition == partition])
        for batch in sent.batches:
            for index, content in enumerate(batch.contents):
                sent.by_tag[content.tag] = batch, index
        for batch in history.batches:
            is_near = (
                batch.partition.topic == partition.topic
                and batch.partition.partition_index == partition.partition_index
            )
            if is_near and batch.partition != partition and batch.uses_topic_name and batch.status is Status.UNKNOWN:
                sent.strays.update({content.tag: batch for content in batch.contents})
        return sent


def check_partition(history: History, view: PartitionView, rules: TopicRules, now_ms: int = 0) -> list[str]:
    """Check one partition that was read from its start to its end."""
    assert view.records is not None
    assert view.batches is not None
    sent = _Sent.to(view.partition, history)
    contents = {offset: Content.of(record) for offset, record in sorted(view.records.items())}
    return [
        f"{view.partition}: {finding}"
        for check in (
            _check_offsets(view, rules),
            _check_known(contents, sent, rules),
            _check_acknowledged(history, contents, view, sent, rules, now_ms),
            _check_once_in_order(contents, sent),
            _check_sequences(view.batches, rules),
            _check_sightings(history, view.partition, sent, rules),
            _check_deleted(history, contents, view, sent),
        )
        for finding in check
    ]


def _check_offsets(view: PartitionView, rules: TopicRules) -> Iterator[str]:
    assert view.records is not None
    if view.position < view.high_watermark:
        yield f"could be read only up to {view.position} of {view.high_watermark}"
    if not rules.is_compacted:
        offsets = sorted(offset for offset in view.records if offset >= view.start_offset)
        wanted = list(range(view.start_offset, view.high_watermark))
        if offsets != wanted:
            missing = sorted(set(wanted) - set(offsets))
            yield f"offsets {missing[:5]} … are missing between {view.start_offset} and {view.high_watermark}"


def _is_same(sent: Content, seen: Content, rules: TopicRules) -> bool:
    if rules.stamps_append_time:
        return sent[:3] == seen[:3]
    return sent == seen


def _check_known(contents: Mapping[int, Content], sent: _Sent, rules: TopicRules) -> Iterator[str]:
    for offset, content in contents.items():
        sent_record = sent.by_tag.get(content.tag)
        if sent_record is None:
            if content.tag not in sent.strays:
                yield f"offset {offset} holds {content.tag!r}, which was never sent here"
            continue
        batch, index = sent_record
        if not _is_same(batch.contents[index], content, rules):
            yield f"offset {offset} holds {content}, sent was {batch.contents[index]}"
        if batch.status is Status.REFUSED:
            yield f"offset {offset} holds {content.tag!r}, although its write was refused"


def _is_owed(batch: SentBatch, history: History) -> bool:
    if batch.status is not Status.ACKNOWLEDGED:
        return False
    if batch.promise is Promise.UNTIL_POWER_CUT:
        return batch.settled_at_ms > history.last_power_cut_ms
    return batch.promise is Promise.SURVIVES


def _check_acknowledged(
    history: History,
    contents: Mapping[int, Content],
    view: PartitionView,
    sent: _Sent,
    rules: TopicRules,
    now_ms: int,
) -> Iterator[str]:
    latest_offset = {content.key: offset for offset, content in sorted(contents.items())}
    tombstones = {
        content.key
        for batch in sent.batches
        for content in batch.contents
        if rules.is_compacted and not content.value
    }
    for batch in sent.batches:
        if not _is_owed(batch, history):
            continue
        for index, content in enumerate(batch.contents):
            offset = batch.base_offset + index
            if offset < view.start_offset:
                if rules.keeps_all_ms is not None and now_ms - batch.made_at_ms < rules.keeps_all_ms:
                    yield (
                        f"the acknowledged {content.tag!r} at offset {offset} was taken by retention after "
                        f"{now_ms - batch.made_at_ms} of {rules.keeps_all_ms} ms"
                    )
                continue
            there = contents.get(offset)
            if there is None and rules.is_compacted:
                if latest_offset.get(content.key, -1) > offset or content.key in tombstones:
                    continue
                yield f"the latest record of key {content.key!r}, {content.tag!r} at {offset}, is gone"
            elif there is None:
                yield f"the acknowledged {content.tag!r} at offset {offset} is gone"
            elif there.tag != content.tag:
                yield f"offset {offset} was acknowledged to be {content.tag!r} and is {there.tag!r}"


def _check_once_in_order(contents: Mapping[int, Content], sent: _Sent) -> Iterator[str]:
    """Idempotent producers: every record at most once, those of one producer id in the order of sending."""
    offsets: dict[str, int] = {}
    last: dict[int, tuple[int, int]] = {}
    for offset, content in contents.items():
        sent_record = sent.by_tag.get(content.tag)
        if sent_record is None or sent_record[0].producer_id < 0:
            continue
        batch, index = sent_record
        if content.tag in offsets:
            yield f"{content.tag!r} is there twice, at {offsets[content.tag]} and at {offset}"
            continue
        offsets[content.tag] = offset
        sequence = batch.sequence + index
        before, before_at = last.get(batch.producer_id, (-1, -1))
        if sequence <= before:
            yield f"producer {batch.producer_id}: sequence {sequence} at {offset} follows {before} at {before_at}"
        last[batch.producer_id] = sequence, offset


def _check_sequences(batches: Sequence[BatchHeader], rules: TopicRules) -> Iterator[str]:
    """No gap between batches of one producer epoch, unless compaction made it.

    The first may have any sequence: a log without state of the producer has to accept it.
    """
    if rules.is_compacted:
        return
    last: dict[tuple[int, int], int] = {}
    for header in batches:
        if header.producer_id < 0:
            continue
        who = header.producer_id, header.producer_epoch
        before = last.get(who)
        if before is not None and header.base_sequence != (before + 1) % SEQUENCE_COUNT:
            yield f"producer {who}: sequence {header.base_sequence} at {header.base_offset} follows {before}"
        last[who] = header.last_sequence


def _check_sightings(history: History, partition: TopicIdPartition, sent: _Sent, rules: TopicRules) -> Iterator[str]:
    """Once a record is acknowledged, no reader may find another one at its offset."""
    seen = history.seen.get(partition, {})
    for batch in sent.batches:
        if batch.status is not Status.ACKNOWLEDGED or batch.promise is not Promise.SURVIVES:
            continue
        for index, content in enumerate(batch.contents):
            for sighting in seen.get(batch.base_offset + index, ()):
                if sighting.last_seen_ms > batch.settled_at_ms and not _is_same(content, sighting.content, rules):
                    yield (
                        f"offset {batch.base_offset + index} was acknowledged as {content.tag!r} at "
                        f"{batch.settled_at_ms} ms and read as {sighting.content.tag!r} at {sighting.last_seen_ms} ms"
                    )


def _check_deleted(
    history: History, contents: Mapping[int, Content], view: PartitionView, sent: _Sent
) -> Iterator[str]:
    """Deleted records stay deleted. (Offsets restart only where nothing was ever durable.)"""
    deleted = history.deleted_before.get(view.partition, 0)
    moment = history.deleted_at_ms.get(view.partition, -1)
    for offset, content in contents.items():
        sent_record = sent.by_tag.get(content.tag)
        if sent_record is None or not view.start_offset <= offset < deleted:
            continue
        batch, index = sent_record
        was_there = batch.status is Status.ACKNOWLEDGED and batch.settled_at_ms <= moment
        if was_there and batch.base_offset + index == offset:
            yield f"{content.tag!r} at {offset} is there again, although all before {deleted} was deleted"


# Metadata


def check_metadata(history: History, metadata: m.MetadataResponse, configs: m.DescribeConfigsResponse) -> list[str]:
    """Topics and settings are what was acknowledged, or one of the outcomes left open."""
    findings = []
    told_configs = {
        result.resource_name: {entry.name: entry.value for entry in result.configs} for result in configs.results
    }
    for told in metadata.topics:
        name = told.name or ""
        facts = history.topics[name]
        there = told.topic_id if told.error_code == ErrorCode.NONE else None
        if there is not None and there in history.forgotten_ids:
            findings.append(f"topic {name} ({there}) is there again, although its deletion was acknowledged")
        if there not in facts.ids:
            wanted = [str(each) for each in facts.ids]
            findings.append(f"topic {name} is {there}, acknowledged was {wanted} (None: not there)")
        if there is None:
            continue
        if len(told.partitions) not in facts.partition_counts:
            findings.append(f"topic {name} has {len(told.partitions)} partitions, not {list(facts.partition_counts)}")
        for key, values in facts.configs.items():
            value = told_configs[name].get(key)
            if value not in values and None not in values:
                findings.append(f"topic {name} has {key}={value}, acknowledged was {list(values)}")
    return findings


# The disk


def check_folder(contents: Mapping[str, bytes], data_folder: str, compacted: Sequence[str] = ()) -> list[str]:
    """Check the files of a node that stopped cleanly: CRCs, offsets, and indexes against their logs.

    `compacted` names the topics whose segments may have holes.
    """
    folders: dict[str, dict[str, bytes]] = {}
    for path, data in contents.items():
        inside = path.removeprefix(data_folder + "/")
        folder, slash, name = inside.partition("/")
        if inside != path and slash:
            folders.setdefault(folder, {})[name] = data
    findings = []
    for folder, files in folders.items():
        partition = read_partition_folder(folder)
        if partition is not None:
            findings += [
                f"{folder}/{finding}" for finding in _check_segments(files, partition.topic not in compacted)
            ]
    return findings


def _check_segments(files: Mapping[str, bytes], is_whole: bool) -> Iterator[str]:
    expected: int | None = None
    for name, data in sorted(files.items()):
        read = read_offset_name(name)
        if read is None or read[1] != LOG:
            continue
        base = read[0]
        if expected is not None and (base < expected or (is_whole and base != expected)):
            yield f"{name}: begins at {base}, the segment before it ends at {expected}"
        expected = base
        headers: dict[int, BatchHeader] = {}
        try:
            end = 0
            for position, header in walk(data):
                check_batch(data, position, compacted=True)
                if header.base_offset < expected or (is_whole and header.base_offset != expected):
                    yield f"{name}: offset {header.base_offset} at {position} where {expected} was due"
                expected = header.next_offset
                headers[position] = header
                end = position + header.size
        except (RemoteError, Refused) as fault:
            yield f"{name}: {fault} after offset {expected}"
            continue
        if end != len(data):
            yield f"{name}: {len(data) - end} bytes follow the last whole batch"
        yield from _check_indexes(files, base, headers)


def _check_indexes(files: Mapping[str, bytes], base: int, headers: Mapping[int, BatchHeader]) -> Iterator[str]:
    name = offset_name(base, OFFSET_INDEX)
    data = files.get(name, b"")
    if len(data) % _OFFSET_ENTRY.size:
        yield f"{name}: {len(data)} bytes are no whole entries"
    for relative, position in _OFFSET_ENTRY.iter_unpack(data[: len(data) // 8 * 8]):
        header = headers.get(position)
        if header is None or header.last_offset != base + relative:
            yield f"{name}: offset {base + relative} is not at position {position}"
    name = offset_name(base, TIME_INDEX)
    data = files.get(name, b"")
    if len(data) % _TIME_ENTRY.size:
        yield f"{name}: {len(data)} bytes are no whole entries"
    by_last_offset = {header.last_offset: header for header in headers.values()}
    for timestamp, relative in _TIME_ENTRY.iter_unpack(data[: len(data) // 12 * 12]):
        header = by_last_offset.get(base + relative)
        if header is None or header.max_timestamp != timestamp:
            yield f"{name}: {timestamp} is not the time of the batch that ends at {base + relative}"
