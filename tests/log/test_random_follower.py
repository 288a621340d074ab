"""Run after run of a follower that is restarted wherever its leader's log begins, also inside a batch.

There is one history, so whatever it has must be the leader's. It finds no room and no descriptors, it is killed, and
the power goes between two steps or at any operation of the disk within one. No life finds it damaged, and the last
one comes to have everything.
"""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from millpond.base.errors import Refused
from millpond.log.limits import LogLimits
from millpond.log.names import BEGUN
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds

STEPS = 100
TARGETS = (".index", ".snapshot", ".log", "recovery-point", "log-start", "log-start", BEGUN, BEGUN)


class Follower:
    def __init__(self, make_pond, seed):
        self.dice = random.Random(seed)
        leader = make_pond(limits=LogLimits(segment_bytes=1_000_000))
        _, self.leader = leader.open()
        self.leading = leader
        self.values = {}
        self.grow()
        self.harness = make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
        self.story = []
        self.start = 0
        """Where it begins at most, if that is not where the leader begins."""
        self.store, self.log = self.harness.open()

    # What happens to the leader

    def grow(self):
        for _ in range(5):
            values = [b"%d" % self.dice.randrange(1000) for _ in range(self.dice.choice((1, 8, 8)))]
            first = self.leading.append(self.leader, *values)
            self.values |= dict(enumerate(values, first))

    def delete(self):
        self.leader.delete_before(self.dice.randint(self.leader.start_offset, self.leader.end_offset))

    # What the follower does

    def fetch(self):
        if self.log.start_offset != self.store.noted_start(self.harness.tp):
            self.store.checkpoint()
        if self.log.end_offset < self.leader.start_offset:
            self.begin_anew()
            return
        self.log.delete_before(self.leader.start_offset)
        batches = bytearray(self.leader.read_batches(self.log.end_offset, self.dice.choice((1, 300, 700))))
        if batches:
            self.log.append_follower(memoryview(batches), now_ms=self.harness.now_ms)

    def begin_anew(self):
        """Also when it is told to by another leader, which has the same."""
        truncation = self.log.begin_truncation(self.leader.start_offset, is_new_start=True)
        try:
            self.store.checkpoint()
        except OSError:
            self.log.give_up_truncation(truncation)
            return
        error = None
        try:
            truncation.run()
        except OSError as fault:
            error = fault
        self.log.finish_truncation(truncation, error)

    def sync(self):
        self.harness.sync_or_fail(self.log)

    def checkpoint(self):
        self.store.checkpoint()

    # Needs and ends

    def fill(self):
        self.harness.disk.fill(self.dice.choice((0, 0, 0, self.dice.randrange(400))))

    def make_room(self):
        self.harness.disk.heal()

    def lack(self):
        code = self.dice.choice((errno.EMFILE, errno.ENOSPC))
        self.harness.disk.fail_opens(self.dice.choice(TARGETS), times=self.dice.choice((1, 2)), code=code)

    def end(self):
        with contextlib.suppress(OSError):
            self.store.close()
        self.next_life()

    def kill(self):
        self.store.abandon()
        self.next_life()

    def cut_power(self):
        self.store.abandon()
        self.harness.disk.heal()
        self.harness.disk.crash()
        self.next_life(self.owed(), has_lost=True)

    def arm(self):
        """The power will go at some operation."""
        self.harness.disk.crash_at_operation(self.harness.disk.operations + self.dice.randint(1, 25))

    # What must be true

    def owed(self):
        """Up to where it has to have everything, unless its start is behind that."""
        return self.log.synced_offset if self.log.failed is None else 0

    def next_life(self, owed=0, *, has_lost=False):
        self.harness.disk.heal()
        self.harness.disk.drop_process()
        self.store, self.log = self.harness.open()
        assert self.log.end_offset >= owed or owed <= self.leader.start_offset
        if has_lost and self.log.start_offset > max(self.leader.start_offset, self.start):
            # A beginning that was never synced may be gone like an end.
            assert owed <= self.log.start_offset
            self.start = self.log.start_offset
        self.check()

    def check(self):
        here = self.harness.values(self.log)
        assert list(here) == list(range(self.log.start_offset, self.log.end_offset))
        assert self.log.start_offset <= max(self.leader.start_offset, self.start)
        assert here.items() <= self.values.items()
        marks = [name for name in self.harness.disk.list(self.harness.partition) if name.endswith(BEGUN)]
        assert len(marks) <= 1

    def live(self):
        often = (self.fetch, self.fetch, self.fetch, self.sync, self.checkpoint)
        seldom = (self.grow, self.delete, self.begin_anew)
        needs = (self.fill, self.make_room, self.make_room, self.lack)
        ends = (self.end, self.kill, self.cut_power, self.arm, self.arm)
        for _ in range(STEPS):
            step = self.dice.choice(self.dice.choice((often, often, seldom, needs, ends)))
            self.story.append(step.__name__)
            self.harness.now_ms += 1000
            try:
                if self.log.failed is not None:
                    self.kill()
                with contextlib.suppress(OSError, Refused):
                    step()
            except PowerCut:
                self.story.append("the power is gone")
                owed = self.owed()
                self.harness.disk.heal()
                self.harness.disk.crash()
                self.next_life(owed, has_lost=True)
        self.harness.disk.crash_at_operation(1 << 62)
        self.kill()
        for _ in range(400):
            self.fetch()
        self.check()
        assert self.log.end_offset == self.leader.end_offset


@pytest.mark.parametrize("seed", seeds(range(150)))
def test_each_life_has_what_the_leader_has(make_pond, seed):
    follower = Follower(make_pond, seed)
    try:
        follower.live()
    except BaseException:
        print(follower.story)
        raise
