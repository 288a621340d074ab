"""A model of the transactions in a log: what is open, what is committed, and what its readers must see."""

from __future__ import annotations

from millpond.log.markers import read_marker
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch
from support.permissions import permitted


class Model:
    """What was written, by offset."""

    def __init__(self, pond):
        self.pond = pond
        self.safe = 0
        self.data = {}
        """offset: (producer or None, epoch, sequence, key, value)"""
        self.markers = {}
        """offset: (producer, epoch, committed)"""
        self.pending = None
        """What is being written, as (name of the one above, row): after a power cut it may be there."""

    # Queries

    def cut(self, end):
        self.data = {offset: row for offset, row in self.data.items() if offset < end}
        self.markers = {offset: row for offset, row in self.markers.items() if offset < end}

    def walk(self):
        """(open transactions, offsets of committed records)"""
        opened, committed = {}, []
        for offset in sorted([*self.data, *self.markers]):
            if offset in self.markers:
                producer, _, is_commit = self.markers[offset]
                rows = opened.pop(producer, [])
                committed += rows if is_commit else []
            elif self.data[offset][0] is None:
                committed.append(offset)
            else:
                opened.setdefault(self.data[offset][0], []).append(offset)
        return opened, sorted(committed)

    def stable(self, end):
        opened, _ = self.walk()
        return min((rows[0] for rows in opened.values()), default=end)

    def producer(self, number):
        """(epoch, next sequence, is a transaction open)"""
        epoch, sequence = 0, -1
        for offset in sorted([*self.data, *self.markers]):
            row = self.markers.get(offset) or self.data[offset]
            if row[0] == number:
                if row[1] != epoch:
                    epoch, sequence = row[1], -1
                if offset in self.data:
                    sequence = row[2]
        return epoch, sequence + 1, number in self.walk()[0]

    # Changes

    def write(self, log, number, key, value):
        epoch, sequence, _ = self.producer(number)
        for facts in log.producer_states():
            # Compaction keeps a producer's last batch, which a power cut or retention may remove: the producer then
            # gets an out-of-order error, and starts over.
            if facts.producer_id == number and facts.producer_epoch == epoch and facts.last_sequence + 1 != sequence:
                epoch, sequence = epoch + 1, 0
        batch = self.pond.batch(
            value, key=key, producer_id=number, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        verification = permitted(log.producers, number, epoch, sequence, self.pond.now_ms)
        self.pending = "data", (number, epoch, sequence, key, value)
        self.is_at(log.append(batch, leader_epoch=0, now_ms=self.pond.now_ms, verification=verification).first_offset)

    def plain(self, log, key, value):
        self.pending = "data", (None, 0, 0, key, value)
        self.is_at(self.pond.append(log, value, key=key))

    def end(self, log, number, committed):
        """Producers with odd numbers use transactions v2."""
        epoch, _, _ = self.producer(number)
        is_v2 = number % 2
        self.pending = "markers", (number, epoch + 1 if is_v2 else epoch, committed)
        offset = log.append_marker(
            number,
            epoch + 1 if is_v2 else epoch,
            committed,
            0,
            now_ms=self.pond.now_ms,
            leader_epoch=0,
            transaction_version=2 if is_v2 else 0,
        ).first_offset
        self.is_at(offset)

    def is_at(self, offset):
        """What was pending is written."""
        name, row = self.pending
        getattr(self, name)[offset] = row
        self.pending = None

    def follow(self, log):
        """After a power cut the log may have lost what was not synced, and have what was being written."""
        if self.pending is not None and log.end_offset > max((*self.data, *self.markers), default=-1) + 1:
            self.is_at(log.end_offset - 1)
        self.pending = None
        self.cut(log.end_offset)


def committed_view(log, dice, start=0):
    """What a read_committed consumer gets: fetches, each with its own list of aborted transactions."""
    upper = log.stable_offset(log.end_offset)
    offset, found = start, {}
    while offset < upper:
        part = log.read(offset, dice.choice([150, 400, 5000]), upper_offset=upper)
        data = part.read()
        if not data:
            break  # compaction removed everything from here on
        aborted = sorted(log.aborted_transactions(offset, part.upper_offset), key=lambda pair: pair[1])
        leaving_out = set()
        for position, header in walk(data):
            while aborted and aborted[0][1] <= header.last_offset:
                leaving_out.add(aborted.pop(0)[0])
            if header.is_control:
                marker = read_marker(data[position : position + header.size])
                if marker is not None and not marker.committed:
                    leaving_out.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in leaving_out):
                for record in decode_batch(data, position):
                    if record.offset >= offset:
                        found[record.offset] = (record.key, record.value)
            offset = max(offset, header.next_offset)
    return found


def check(log, model, dice, *, compacted=False):
    assert log.last_stable_offset == max(model.stable(log.end_offset), log.start_offset)
    upper = log.last_stable_offset
    _, committed = model.walk()
    wanted = {offset: model.data[offset][3:] for offset in committed if offset < upper}
    reader = log
    result = committed_view(reader, dice, log.start_offset)
    if not compacted:
        assert result == {offset: row for offset, row in wanted.items() if offset >= log.start_offset}
        late = dice.randrange(log.start_offset, upper + 1)
        assert committed_view(reader, dice, late) == {offset: row for offset, row in wanted.items() if offset >= late}
    else:
        assert result.items() <= wanted.items()
        assert latest(result) == latest({offset: row for offset, row in wanted.items() if offset >= log.start_offset})
    known = {row[0] for row in (*model.data.values(), *model.markers.values())}
    for facts in log.producer_states():
        if facts.producer_id not in known:
            continue
        epoch, sequence, is_open = model.producer(facts.producer_id)
        assert (facts.transaction_start >= 0) == is_open
        # Compaction relies on the last batch of a producer, which a power cut may remove.
        assert facts.producer_epoch == epoch or (compacted and facts.producer_epoch < epoch)
        assert compacted or facts.last_sequence in (sequence - 1, -1)


def latest(rows):
    table = {}
    for offset in sorted(rows):
        table[rows[offset][0]] = rows[offset][1]
    return {key: value for key, value in table.items() if value is not None}
