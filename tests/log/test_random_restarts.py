"""Life after life of a log, by chance: whatever is noted beside it, each life goes by what its batches tell.

Kills, power cuts, clean ends and ends that are none follow each other, with notes that find no room, starts that move
and logs that are truncated, deleted and created again under the same name in between. Removals overtake each other,
fail or come too late; cuts are given up; a sync fails and the process is killed before the log hears of it. The power
goes between two steps, or at any operation of the disk within one.
"""

from __future__ import annotations

import contextlib
import errno
import random
from uuid import UUID

import pytest

from millpond.base.errors import Refused
from millpond.log.limits import LogLimits
from millpond.log.producers import ProducerStates
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds

STEPS = 80
PRODUCER = 1
NOTES = ("leader-epoch-checkpoint", "-offset-checkpoint", ".snapshot", "append-times")


class Simulation:
    def __init__(self, harness, seed):
        self.harness = harness
        self.dice = random.Random(seed)
        self.values = {}
        """offset: (value, leader epoch, sequence), as the log had them when it was looked at last"""
        self.start = 0
        """Where the log has begun at most."""
        self.deleted = 0
        """Where it begins for good."""
        self.epoch = 1
        self.sequence = -1
        self.topics = 7
        self.story = []
        self.store, self.log = None, None
        self.pending = None
        """What is being appended: after a power cut it may be there."""
        self.jobs = []
        """Removals that wait for their time, with where the log begins once they are done."""
        self.begin()

    # What is looked at

    def begin(self, safe=None):
        """The next life. After a power cut only what was synced has to be there."""
        self.jobs = []
        store = self.store = self.harness.store()
        report = store.open(self.harness.now_ms)
        assert not report.failed, report.failed
        log = store.get(self.harness.tp)
        if log is not None and log.topic_id != self.harness.topic_id and (log.topic_id.int or log.end_offset):
            # Its removal did not survive, or it was never synced: the broker sets it aside.
            store.set_aside(self.harness.tp)
        self.log = store.create(self.harness.tp, self.harness.topic_id)
        self.log.set_topic_id(self.harness.topic_id)
        if safe is not None:
            end = self.log.end_offset
            assert end >= safe
            if self.log.start_offset > self.start:
                # A beginning that was never synced may be gone like an end.
                assert safe <= self.log.start_offset
                self.start = self.log.start_offset
            if self.pending is not None and end == max(self.values, default=self.start - 1) + 2:
                self.values[end - 1] = self.pending
            self.values = {each: row for each, row in self.values.items() if each < end}
            self.start, self.deleted = min(self.start, end), min(self.deleted, end)
        self.check()

    def check(self):
        log = self.log
        found = {
            header.base_offset: header
            for segment in log.segments
            for _, header in segment.batches_from(segment.base_offset)
        }
        for offset, header in found.items():
            assert self.values[offset][1] == header.leader_epoch
            if offset >= log.start_offset:
                assert log.epochs.of(offset) == header.leader_epoch, (offset, log.epochs.entries)
        read = self.harness.values(log)
        assert read == {offset: row[0] for offset, row in self.values.items() if offset >= log.start_offset}
        assert min(self.deleted, log.end_offset) <= log.start_offset <= max(self.start, 0)
        replayed = ProducerStates()
        for segment in log.segments:
            for _ in replayed.replay(segment.file, segment.batches_from(segment.base_offset), 0, self.harness.now_ms):
                pass
        for producer_id, entry in replayed.entries.items():
            assert log.producers.entries[producer_id].last_sequence == entry.last_sequence

    # What happens

    def append(self):
        if self.dice.random() < 0.3:
            self.epoch += 1
        known = self.log.producers.entries.get(PRODUCER)
        sequence = (known.last_sequence if known is not None else self.sequence) + 1
        value = b"%d-%d" % (self.epoch, self.dice.randrange(1000))
        self.pending = value, self.epoch, sequence
        with contextlib.suppress(Refused):
            offset = self.harness.append(
                self.log,
                value,
                epoch=self.epoch,
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=sequence,
                timestamp=self.harness.now_ms - self.dice.choice((0, 10**9)),
            )
            self.values[offset] = value, self.epoch, sequence
            self.sequence = sequence

    def begin_epoch(self):
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def sync(self):
        self.harness.sync_or_fail(self.log)

    def checkpoint(self):
        with contextlib.suppress(OSError):
            self.store.checkpoint()
            self.deleted = self.log.start_offset

    def delete_before(self):
        self.log.delete_before(self.dice.randint(self.log.start_offset, self.log.end_offset))
        self.start = max(self.start, self.log.start_offset)

    def retire(self):
        for _ in range(min(len(self.log.segments) - 1, self.dice.choice((1, 2)))):
            job = self.log.retire(self.log.segments[:1])
            self.start = max(self.start, self.log.start_offset)
            self.jobs.append((job, self.log, self.log.segments[0].base_offset))

    def remove(self):
        """Any of those that wait: one that overtakes others, too, or is of a log that was deleted or recreated."""
        if not self.jobs:
            return
        job, log, base = self.jobs.pop(self.dice.randrange(len(self.jobs)))
        if not job.begin():
            return
        is_done = self.dice.random() < 0.7
        if is_done:
            job.run()
            if log is self.log:
                self.deleted = max(self.deleted, base)
        job.end(is_done=is_done)

    def lose(self):
        """A sync fails, and the process is killed before its loop hears of it."""
        ticket = self.log.sync_target()
        self.harness.disk.fail_syncs(".log")
        with contextlib.suppress(OSError):
            ticket.run()
        self.kill()

    def begin_elsewhere(self):
        """The leader's log begins only there."""
        self.harness.disk.heal()
        offset = self.log.end_offset + self.dice.choice((0, 3, 50))
        truncation = self.log.begin_truncation(offset, is_new_start=True)
        if self._gives_up(truncation):
            return
        self.store.checkpoint()
        truncation.run()
        self.log.finish_truncation(truncation)
        self.values, self.start, self.deleted, self.sequence = {}, offset, offset, -1
        self.checkpoint()

    def _gives_up(self, truncation):
        """The checkpoint before it finds no room now and then."""
        if self.dice.random() < 0.7:
            return False
        self.log.give_up_truncation(truncation)
        return True

    def cut(self):
        self.harness.disk.heal()
        offset = self.dice.randint(max(self.log.end_offset - 6, 0), self.log.end_offset)
        if offset == self.log.end_offset:
            self.log.forget_epochs_at_end()
            return
        truncation = self.log.begin_truncation(offset, keeps=self.dice.random() < 0.5)
        if self._gives_up(truncation):
            return
        self.store.checkpoint()
        self.values = {each: row for each, row in self.values.items() if each < truncation.offset}
        self.start, self.deleted = min(self.start, truncation.offset), min(self.deleted, truncation.offset)
        if self.dice.random() < 0.2:
            self.harness.disk.fail_syncs(".log")
            with contextlib.suppress(OSError):
                truncation.run()
            self.kill()
            return
        truncation.run()
        self.log.finish_truncation(truncation)
        self.start = min(self.start, self.log.end_offset)
        self.deleted = min(self.deleted, self.log.end_offset)
        if self.log.start_offset != self.store.noted_start(self.harness.tp):
            # As a follower does before it goes on.
            self.checkpoint()

    def no_room(self):
        part = self.dice.choice(NOTES)
        self.harness.disk.fail_opens(part, times=self.dice.choice((1, 3)), code=errno.ENOSPC)

    def room(self):
        self.harness.disk.heal()

    def begin_anew(self):
        """Deleted and made again, with a checkpoint on its way now and then."""
        self.harness.disk.heal()
        job = self.store.begin_checkpoint() if self.dice.random() < 0.7 else None
        self.store.delete(self.harness.tp)
        self.topics += 1
        self.harness.topic_id = UUID(int=self.topics)
        if job is not None and self.store.is_leaving(self.harness.tp):
            job.run()
            self.store.end_checkpoint(job)
            job = None
        self.log = self.store.create(self.harness.tp, self.harness.topic_id)
        if job is not None:
            job.run()
            self.store.end_checkpoint(job)
        self.values, self.start, self.deleted, self.sequence = {}, 0, 0, -1

    def end(self):
        with contextlib.suppress(OSError):
            self.store.close(is_vouched=self.dice.random() < 0.7)
            self.deleted = self.log.start_offset
        self.harness.disk.heal()
        self.begin()

    def kill(self):
        self.store.abandon()
        self.harness.disk.heal()
        self.harness.disk.drop_process()
        self.begin()

    def power_cut(self):
        safe = self.log.synced_offset
        self.store.abandon()
        self.harness.disk.heal()
        self.harness.disk.crash()
        self.begin(safe)

    def arm(self):
        """The power will go at some operation."""
        self.harness.disk.crash_at_operation(self.harness.disk.operations + self.dice.randint(1, 40))

    def disarm(self):
        """Of what follows nobody could tell how far it came."""
        self.harness.disk.crash_at_operation(1 << 62)

    def after_cut(self):
        safe = self.log.synced_offset
        self.harness.disk.heal()
        self.harness.disk.crash()
        self.begin(safe)

    def live(self):
        often = (self.append, self.append, self.append, self.append, self.sync, self.checkpoint)
        seldom = (self.begin_epoch, self.delete_before, self.cut, self.no_room, self.room)
        removals = (self.retire, self.remove)
        ends = (self.end, self.kill, self.power_cut, self.arm, self.begin_anew, self.lose, self.begin_elsewhere)
        for _ in range(STEPS):
            step = self.dice.choice(self.dice.choice((often, often, often, seldom, removals, removals, ends)))
            self.story.append(step.__name__)
            self.harness.now_ms += 1000
            if step in (self.cut, self.begin_anew, self.begin_elsewhere):
                self.disarm()
            try:
                if self.log.failed is not None:
                    self.kill()
                step()
            except PowerCut:
                self.story.append("the power is gone")
                self.after_cut()
            self.pending = None
        self.disarm()
        self.end()


@pytest.mark.parametrize("seed", seeds(range(90)))
def test_every_restart_recovers_the_state_that_the_batches_define(make_pond, seed):
    simulation = Simulation(
        make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=400, index_interval_bytes=150)), seed
    )
    try:
        simulation.live()
    except BaseException:
        print(simulation.story)
        raise
