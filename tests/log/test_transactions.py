"""Transactions in a log against a model: whatever is written, cut, compacted, reopened or lost in a power cut, a
consumer of committed records sees what the model says, and what is stable is what the model says."""

from __future__ import annotations

import random

import pytest
from tests.support.permissions import permitted

import support.seeds
from millpond.base.errors import Refused
from millpond.log.limits import LogLimits
from millpond.log.producers import ProducerStates
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds
from support.transaction_model import Model, check

SMALL = LogLimits(segment_bytes=500, index_interval_bytes=150)
COMPACT = LogLimits(
    segment_bytes=500,
    index_interval_bytes=150,
    cleanup_delete=False,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=500,
    producer_id_expiration_ms=400,
)


def compact(harness, log):
    # What a power cut may take must not replace anything.
    plan = log.compaction_candidate(harness.now_ms, log.synced_offset)
    if plan is not None:
        plan.run()
        log.finish_compaction(plan).run()


def act(harness, store, log, model, dice, *, may_cut):
    """One random thing; the store and log to go on with."""
    number = dice.randrange(1, 5)
    key, value = b"k%d" % dice.randrange(4), b"v%d" % dice.randrange(1 << 30)
    match dice.choices(
        ["write", "plain", "end", "sync", "slow sync", "reopen", "crash", "cut", "compact"],
        [8, 2, 5, 2, 2, 1, 1, 1, 1],
    )[0]:
        case "write":
            model.write(log, number, key, value)
        case "plain":
            model.plain(log, key, value)
        case "end":
            model.end(log, number, dice.random() < 0.5)
        case "sync":
            harness.sync(log)
            store.checkpoint()
        case "slow sync":
            ticket = log.sync_target()
            ticket.run()
            model.write(log, number, key, value)
            model.end(log, number, dice.random() < 0.5)
            log.roll()
            log.synced(ticket)
            store.checkpoint()
        case "reopen":
            store.close()
            store, log = harness.open()
        case "crash":
            harness.disk.crash()
            store, log = harness.open()
            model.follow(log)
            # Or else what was cut off may come back with the next power cut, as nobody was promised otherwise.
            harness.sync(log)
        case "cut" if may_cut:
            harness.cut(log, dice.randrange(log.start_offset, log.end_offset + 1))
            model.cut(log.end_offset)
        case "compact":
            compact(harness, log)
    return store, log


@pytest.mark.parametrize("limits", [SMALL, COMPACT], ids=["plain", "compacted"])
def test_a_consumer_of_committed_records_sees_what_the_model_says(make_pond, limits):
    for seed in seeds(range(40)):
        dice = random.Random(seed)
        harness = make_pond(disk=SimDisk(seed), limits=limits)
        store, log = harness.open()
        harness.sync(log)
        model = Model(harness)
        try:
            for _ in range(60):
                # What compaction took cannot be written down again, so there the end is not cut.
                store, log = act(harness, store, log, model, dice, may_cut=not limits.cleanup_compact)
                check(log, model, dice, compacted=limits.cleanup_compact)
        except (AssertionError, Refused) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def life(harness, model):
    """Transactions across segments, one of them aborted, compaction, and a clean end."""
    store, log = harness.open()
    harness.sync(log)
    for number in range(10):
        model.write(log, 1, b"a", b"one-%d" % number)
        if number % 2:
            model.write(log, 2, b"b%d" % number, b"two-%d" % number)
        if number % 3 == 2:
            model.end(log, 1, committed=number != 5)
        if number % 4 == 3:
            harness.sync(log)
            model.safe = log.synced_offset
            store.checkpoint()
    model.end(log, 2, committed=False)
    model.end(log, 1, committed=False)
    for number in range(6):
        model.plain(log, b"a", b"plain-%d" % number)
    harness.sync(log)
    store.checkpoint()
    for _ in range(3):
        compact(harness, log)
        harness.now_ms += 600
        model.plain(log, b"a", b"more")
        log.roll()
    store.close()


@pytest.mark.parametrize("limits", [SMALL, COMPACT], ids=["plain", "compacted"])
def test_a_power_cut_at_every_disk_operation_leaves_transactions_as_they_were(make_pond, limits):
    whole = make_pond(disk=SimDisk(1), limits=limits)
    life(whole, Model(whole))
    dice = support.seeds.dice(1)
    for number in range(1, whole.disk.operations + 1):
        harness = make_pond(disk=SimDisk(number), limits=limits)
        harness.disk.crash_at_operation(number)
        model = Model(harness)
        try:
            life(harness, model)
        except PowerCut:
            pass
        except Refused as refused:
            if not isinstance(refused.__cause__, PowerCut):
                raise
        harness.disk.crash()
        _, log = harness.open()
        assert log.end_offset >= model.safe
        model.follow(log)
        try:
            check(log, model, dice, compacted=limits.cleanup_compact)
        except AssertionError as error:
            raise AssertionError(f"operation {number}: {error}") from error


def test_batches_are_taken_in_from_an_offset_on(harness):
    _, log = harness.open()
    model = Model(harness)
    model.write(log, 1, b"a", b"one")
    model.end(log, 1, committed=False)
    model.write(log, 1, b"a", b"two")
    model.end(log, 1, committed=True)
    segment = log.segments.active
    states = ProducerStates()
    ended = list(states.replay(segment.file, segment.batches_from(0), 2, now_ms=99))
    assert [(each.first_offset, each.last_offset, each.committed) for each in ended] == [(2, 3, True)]
    assert states.entries[1].active_ms == 99


def test_an_index_sealed_after_the_last_sync_is_made_again(harness):
    store, log = harness.open()
    model = Model(harness)
    model.write(log, 1, b"a", b"one")
    model.end(log, 1, committed=False)
    harness.sync(log)
    store.checkpoint()
    # The recovery point is where the segment ends; its index has not been synced.
    log.roll()
    harness.disk.remove(f"{harness.partition}/{0:020d}.txnindex")
    store.abandon()
    _, log = harness.open()
    assert len(log.segments) == 2
    assert log.aborted_transactions(0, log.end_offset) == [(1, 0)]


def test_what_was_aborted_in_a_segment_that_was_rolled_during_a_sync_stays_so_after_a_power_cut(make_pond):
    for seed in seeds(range(300)):
        harness = make_pond(disk=SimDisk(seed))
        store, log = harness.open()
        model = Model(harness)
        model.write(log, 1, b"a", b"aborted")
        model.end(log, 1, committed=False)
        ticket = log.sync_target()
        ticket.run()
        log.roll()
        log.synced(ticket)
        model.plain(log, b"a", b"after")
        harness.sync(log)
        store.checkpoint()
        harness.disk.crash()
        _, log = harness.open()
        check(log, model, random.Random(seed))


def test_a_reader_gets_only_the_aborted_transactions_in_its_range(make_pond):
    """Ten thousand later ones are neither listed nor, once sealed, read from their file."""
    harness = make_pond(limits=LogLimits(segment_bytes=1 << 20, index_interval_bytes=150))
    store, log = harness.open()
    for number in range(600):
        verification = permitted(log.producers, 7, 0, number, harness.now_ms)
        batch = harness.batch(b"v", producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
        log.append(batch, leader_epoch=0, now_ms=harness.now_ms, verification=verification)
        log.append_marker(7, 0, False, 0, now_ms=harness.now_ms, leader_epoch=0)
    harness.sync(log)
    for state in ("growing", "sealed", "reopened"):
        if state == "sealed":
            log.roll()
        if state == "reopened":
            store.close()
            store, log = harness.open()
        for offset in (0, 500, 1190):
            found = log.read_ranges(offset, 1000, upper_offset=log.last_stable_offset)
            for part in found.ranges:
                part.file.release()
            assert offset + 10 <= found.upper_offset <= offset + 20
            listed = log.aborted_transactions(offset, found.upper_offset)
            assert [first for _, first in listed] == list(range(offset, found.upper_offset, 2))


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("which", [slice(-4, None), slice(-2, None), slice(1, 3)])
def test_logs_that_are_put_back_find_their_lists_of_aborted_transactions(make_pond, is_clean, which):
    """They are away for one start, which says that they are missing, or takes the gap for a compaction's."""
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, log = harness.open()
    model = Model(harness)
    while len(log.segments) < 6:
        model.write(log, 2, b"k", b"v%d" % log.end_offset)
        model.end(log, 2, False)
        model.plain(log, b"k", b"v%d" % log.end_offset)
    model.plain(log, b"k", b"last")
    harness.sync(log)
    store.checkpoint()
    before = log.aborted_transactions(0, log.end_offset)
    store.close() if is_clean else store.abandon()
    disk = harness.disk
    disk.drop_process()
    disk.make_folder("/aside")
    away = [name for name in disk.list(harness.partition) if name.endswith(".log")][which]
    for name in away:
        disk.rename(f"{harness.partition}/{name}", f"/aside/{name}")
    store = harness.store()
    store.open(harness.now_ms)
    store.abandon()
    disk.drop_process()
    for name in away:
        disk.rename(f"/aside/{name}", f"{harness.partition}/{name}")
    _, log = harness.open()
    assert log.aborted_transactions(0, log.end_offset) == before
