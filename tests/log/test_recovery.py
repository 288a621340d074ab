"""Whatever moment the power goes: what was synced is there, nothing is invented, offsets never change."""

from __future__ import annotations

import pytest
from millpond.log.limits import LogLimits
from millpond.sim.disk import PowerCut, SimDisk

SEEDS = (1, 2, 3)


class Model:
    """What a log was told, and what it promised."""

    def __init__(self):
        self.values = {}
        self.safe = 0
        self.start = 0


def life(pond, model):
    """One life of a log: appends, rolls, syncs, retention, a cut, and a clean end."""
    store, log = pond.open()
    for number in range(24):
        value = b"value-%d" % number
        model.values[log.end_offset] = value
        pond.append(log, value, epoch=number // 9)
        if number % 5 == 4:
            pond.sync(log)
            model.safe = max(model.safe, log.synced_offset)
        if number % 8 == 7:
            store.checkpoint()
        if number == 15:
            model.start = log.segments[2].base_offset
            log.retire(log.segments[:2]).run()
    cut_at = log.end_offset - 3
    model.safe = min(model.safe, cut_at)
    old = {offset: model.values[offset] for offset in range(cut_at, log.end_offset)}
    log.truncate_to(cut_at)
    assert log.end_offset == cut_at
    for offset in old:
        del model.values[offset]
    for number in range(4):
        model.values[log.end_offset] = b"again-%d" % number
        pond.append(log, b"again-%d" % number, epoch=7)
    pond.sync(log)
    model.safe = log.synced_offset
    log.delete_before(log.start_offset + 3)
    model.start = log.start_offset
    store.close()


def check(pond, model, *, before_cut=None):
    store = pond.store()
    report = store.open(pond.now_ms)
    assert not report.failed, report.failed
    log = store.get(pond.tp)
    if log is None:
        assert model.safe == 0
        store.close()
        return
    found = pond.values(log)
    assert log.end_offset >= model.safe
    assert sorted(found) == list(range(log.start_offset, log.end_offset)), "a hole, or offsets twice"
    assert log.start_offset <= model.start
    for offset, value in found.items():
        allowed = {model.values.get(offset), (before_cut or {}).get(offset)}
        assert value in allowed, f"offset {offset} reads {value}, written was {allowed}"
    for offset in range(model.start, model.safe):
        assert offset in found
    epochs = log.epochs.entries
    assert epochs == sorted(epochs)
    # It goes on where it stopped, and a clean end is believed.
    pond.fill(log, 12, start=1000)
    expected = pond.values(log)
    store.close()
    store, log = pond.open()
    assert pond.values(log) == expected
    store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_every_disk_operation_loses_nothing_that_was_synced(make_pond, seed):
    small = LogLimits(segment_bytes=400, index_interval_bytes=150)
    whole = make_pond(disk=SimDisk(seed), limits=small)
    life(whole, Model())
    operations = whole.disk.operations
    assert operations > 100
    values_before_cut = {offset: b"value-%d" % offset for offset in range(24)}
    for number in range(1, operations + 1, len(SEEDS)):
        pond = make_pond(disk=SimDisk(seed * 1000 + number), limits=small)
        pond.disk.crash_at_operation(number + seed % len(SEEDS))
        model = Model()
        try:
            life(pond, model)
        except PowerCut:
            pond.disk.crash()
        check(pond, model, before_cut=values_before_cut)
