"""Life after life of a log with transactions in it, compacted or not, by chance: its readers see what the model says.

A compaction is planned, run and put in place in three steps, and anything may come between them: it is given up, or
fails in the middle, and what it leaves is removed late or never. The log is cut back where nothing is committed,
loses its beginning or all that it has, and finds no room and no descriptors. Kills, power cuts at any operation of
the disk, also while recovery repairs what the last run left, failed syncs and clean shutdowns.
"""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import replace

import pytest

from millpond.base.errors import Refused
from millpond.log.compaction import ENTRY_BYTES, Cancelled
from millpond.log.limits import LogLimits
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds
from support.transaction_model import Model, check

STEPS = 150
PLAIN = LogLimits(segment_bytes=500, index_interval_bytes=400)
"""The last segment is often too small for an entry in an index."""
COMPACTED = replace(
    PLAIN,
    index_interval_bytes=150,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=2000,
)
FORGETFUL = replace(COMPACTED, dedupe_buffer_bytes=3 * ENTRY_BYTES)
"""A compaction comes to an end in the middle of a segment."""
LIMITS = {"plain": PLAIN, "compacted": COMPACTED, "forgetful": FORGETFUL}
IDEMPOTENT = 9
"""A producer without transactions."""


class BeginningLost(Exception):
    """Nothing was promised about this log, and little can be said about it."""


class Simulation:
    def __init__(self, harness, seed):
        self.harness = harness
        self.dice = random.Random(seed)
        self.model = Model(harness)
        self.committed = 0
        """Up to there nobody cuts the log back."""
        self.start = 0
        """Where the log has begun at most."""
        self.touched = 0
        """From there on nothing was ever compacted."""
        self.decisions = {}
        """(producer, first offset): how the coordinator has decided to end the transaction, for good."""
        self.plan = None
        self.has_run = False
        self.jobs = []
        """Removals that wait for their time."""
        self.is_forgotten = False
        self.sent = {}
        """offset: the sequence that the idempotent producer has written there"""
        self.story = []
        self.store, self.log = None, None
        self.begin()

    def begin(self, safe=None):
        """The next life. After a power cut only what was synced has to be there."""
        self.plan, self.jobs = None, []
        if self.log is not None and self.dice.random() < 0.3:
            self.arm()
        store = self.harness.store()
        report = store.open(self.harness.now_ms)
        assert not report.failed, report.failed
        log = store.create(self.harness.tp, self.harness.topic_id)
        self.store, self.log = store, log
        if safe is not None:
            assert log.end_offset >= safe
            if log.start_offset > self.start:
                # A beginning that was never synced may be gone like an end, with all that it said of transactions.
                assert safe <= log.start_offset
                raise BeginningLost
            self.model.follow(log)
            self.committed = min(self.committed, log.end_offset)
            self.sent = {offset: each for offset, each in self.sent.items() if offset < log.end_offset}
            self.tell_again()
        self.check_sequence(is_known=safe is None)
        self.check()

    def check_sequence(self, *, is_known):
        """What the log knows of the idempotent producer is true. After a power cut it may know nothing: a snapshot is
        not synced, and compaction goes by a batch that may be gone. Nor once all of its batches are gone."""
        entry = self.log.producers.entries.get(IDEMPOTENT)
        last = self.sent[max(self.sent)] if self.sent else None
        if entry is not None:
            assert entry.last_sequence == last
        elif is_known and not self.is_forgotten:
            assert last is None or max(self.sent) < self.log.start_offset
        self.is_forgotten = entry is None

    def tell_again(self):
        """The coordinator sends a marker until it is written for good: a new plan may have gone by the first one."""
        for producer, rows in self.model.walk()[0].items():
            if (producer, rows[0]) in self.decisions:
                self.model.end(self.log, producer, self.decisions[producer, rows[0]])

    def check(self):
        log, model = self.log, self.model
        assert log.end_offset == max((*model.data, *model.markers), default=-1) + 1
        check(log, model, self.dice, compacted=self.harness.limits.cleanup_compact)
        there = {record.offset for record in self.harness.records(log) if record.offset in model.data}
        opened, _ = model.walk()
        kept = {offset for rows in opened.values() for offset in rows}
        kept |= {offset for offset in model.data if offset >= self.touched}
        assert {offset for offset in kept if offset >= log.start_offset} <= there

    # What happens

    def _row(self):
        value = None if self.dice.random() < 0.1 else b"v%d" % self.dice.randrange(1 << 30)
        return b"k%d" % self.dice.randrange(4), value

    def write(self):
        self.model.write(self.log, self.dice.randrange(1, 5), *self._row())

    def plain(self):
        self.model.plain(self.log, *self._row())

    def starve(self):
        """A write that may find no room."""
        self.harness.disk.fill(self.dice.randrange(80))
        try:
            self.plain()
        except Refused:
            self.model.pending = None
        finally:
            self.harness.disk.heal()

    def repeat(self):
        """The idempotent producer sends, maybe again."""
        known = self.log.producers.entries.get(IDEMPOTENT)
        last = self.sent[max(self.sent)] if self.sent else -1
        if known is not None and self.dice.random() < 0.3:
            again = self._batch_of(last)
            assert self.log.append(again, leader_epoch=0, now_ms=self.harness.now_ms).duplicate
            return
        batch = self._batch_of(last + 1)
        self.model.pending = "data", (None, 0, 0, b"k0", b"s%d" % (last + 1))
        self.model.is_at(self.log.append(batch, leader_epoch=0, now_ms=self.harness.now_ms).first_offset)
        self.sent[self.log.end_offset - 1] = last + 1
        self.is_forgotten = False

    def _batch_of(self, sequence):
        return self.harness.batch(
            b"s%d" % sequence, key=b"k0", producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=sequence
        )

    def finish(self):
        producer = self.dice.randrange(1, 5)
        rows = self.model.walk()[0].get(producer, [self.log.end_offset])
        is_commit = self.decisions[producer, rows[0]] = self.dice.random() < 0.5
        self.model.end(self.log, producer, is_commit)

    def commit(self):
        """Others have it, too."""
        self.committed = self.dice.randint(self.committed, self.log.end_offset)

    def sync(self):
        self.harness.sync_or_fail(self.log)

    def checkpoint(self):
        self.store.checkpoint()

    def compact(self):
        """One step of it."""
        if self.plan is None:
            self.begin_plan()
        elif not self.has_run:
            self.run_plan()
        else:
            self.finish_plan()

    def begin_plan(self):
        self.commit()
        upper = min(self.committed, self.log.synced_offset)
        self.plan, self.has_run = self.log.compaction_candidate(self.harness.now_ms, upper), False
        if self.plan is not None:
            self.touched = max(self.touched, self.plan.sources[-1].next_offset)

    def run_plan(self):
        self.has_run = True
        disk = self.harness.disk
        fault = self.dice.random()
        if fault < 0.2:
            disk.fail_syncs(self.dice.choice((".log", ".index", "pond-0")))
        elif fault < 0.4:
            disk.fill(self.dice.randrange(800))
        try:
            self.plan.run()
        except (OSError, Cancelled):
            self.give_up()
        finally:
            disk.heal()

    def give_up(self):
        job = self.log.give_up_compaction(self.plan)
        self.plan = None
        # This one begins at once.
        if job.begin():
            is_done = self.dice.random() < 0.7
            if is_done:
                job.run()
            job.end(is_done=is_done)

    def finish_plan(self):
        if self.dice.random() < 0.2:
            self.give_up()
            return
        with contextlib.suppress(Refused):
            self.jobs.append(self.log.finish_compaction(self.plan))
        self.plan = None

    def remove(self):
        if self.jobs:
            job = self.jobs.pop(self.dice.randrange(len(self.jobs)))
            if job.begin():
                is_done = self.dice.random() < 0.7
                if is_done:
                    job.run()
                job.end(is_done=is_done)

    def _decided(self):
        """How far it is known how all transactions end."""
        return min(self.committed, self.log.synced_offset, self.log.last_stable_offset)

    def delete_before(self):
        upper = max(self._decided(), self.log.start_offset)
        self.log.delete_before(self.dice.randint(self.log.start_offset, upper))
        self.start = max(self.start, self.log.start_offset)

    @contextlib.contextmanager
    def _in_need(self):
        """There may be no room, or no descriptor, for a while."""
        disk = self.harness.disk
        need = self.dice.random()
        if need < 0.2:
            disk.fill(self.dice.randrange(200))
        elif need < 0.3:
            disk.open_files_max = disk.open_files + self.dice.randrange(4)
        elif need < 0.4:
            disk.fail_opens(self.dice.choice((".index", ".timeindex", ".txnindex")), code=errno.EMFILE)
        try:
            yield
        except (OSError, Refused):
            assert need < 0.4
        finally:
            disk.heal()

    def retire(self):
        """The first segments, and sometimes all that there are."""
        segments = self.log.segments.list[: self.dice.choice((1, 2, 99, 99))]
        last = segments[-1]
        is_held = not self.log.compaction.held.isdisjoint(each.base_offset for each in segments)
        if last.size and last.next_offset <= self._decided() and not is_held:
            with self._in_need():
                self.jobs.append(self.log.retire(segments))
            self.start = max(self.start, self.log.start_offset)
        if self.log.owes_removal and self.dice.random() < 0.3:
            self.jobs.append(self.log.retire(()))

    def cut(self):
        """As a follower does: it waits until no worker has files of the log in hand."""
        if self.plan is not None:
            self.log.compaction.cancel()
            self.give_up()
        offset = self.dice.randint(max(self.committed, self.log.end_offset - 8), self.log.end_offset)
        if offset == self.log.end_offset:
            return
        truncation = self.log.begin_truncation(offset)
        self.store.checkpoint()
        if self.dice.random() < 0.2:
            self.log.give_up_truncation(truncation)
            return
        truncation.run()
        self.log.finish_truncation(truncation)
        self.model.cut(self.log.end_offset)
        self.sent = {offset: each for offset, each in self.sent.items() if offset < self.log.end_offset}
        self.check_sequence(is_known=not self.harness.limits.cleanup_compact)
        self.tell_again()

    def roll(self):
        with self._in_need():
            self.log.roll()

    def end(self):
        with self._in_need():
            self.store.close(is_vouched=self.dice.random() < 0.7)
        self.harness.disk.drop_process()
        self.begin()
        if self.dice.random() < 0.3:
            # Before anything is written.
            self.roll()

    def kill(self):
        self.store.abandon()
        self.harness.disk.heal()
        self.harness.disk.drop_process()
        self.begin()

    def lose(self):
        """A sync fails, and the process is killed before its loop hears of it."""
        ticket = self.log.sync_target()
        self.harness.disk.fail_syncs(".log")
        with contextlib.suppress(OSError):
            ticket.run()
        self.kill()

    def arm(self):
        """The power will go at some operation."""
        self.harness.disk.crash_at_operation(self.harness.disk.operations + self.dice.randint(1, 40))

    def power_cut(self):
        safe = self.log.synced_offset if self.log is not None else 0
        while True:
            self.harness.disk.heal()
            self.harness.disk.crash()
            try:
                self.begin(safe)
                return
            except PowerCut:
                self.story.append("the power is gone again")

    def live(self):
        often = (
            self.repeat,
            self.write,
            self.write,
            self.write,
            self.plain,
            self.plain,
            self.finish,
            self.finish,
            self.sync,
        )
        compaction = (self.compact, self.compact, self.compact, self.sync, self.remove)
        seldom = (self.starve, self.delete_before, self.retire, self.cut, self.roll, self.checkpoint, self.commit)
        ends = (self.end, self.kill, self.power_cut, self.arm, self.lose)
        kinds = (*[often] * 6, *[compaction] * 4, seldom, seldom, ends)
        for _ in range(STEPS):
            step = self.dice.choice(self.dice.choice(kinds))
            self.story.append(step.__name__)
            self.harness.now_ms += self.dice.choice((1, 100, 1000))
            try:
                if self.log.failed is not None:
                    self.kill()
                step()
                if self.log.is_online:
                    self.check()
            except PowerCut:
                self.story.append("the power is gone")
                self.power_cut()


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("seed", seeds(range(30)))
def test_readers_see_what_the_model_says_in_each_life(make_pond, kind, seed):
    simulation = Simulation(make_pond(disk=SimDisk(seed), limits=LIMITS[kind]), seed)
    try:
        with contextlib.suppress(BeginningLost):
            simulation.live()
    except BaseException:
        print(simulation.story)
        raise
