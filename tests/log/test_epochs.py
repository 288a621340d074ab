from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.log.epochs import LeaderEpochs


def test_where_epochs_end():
    epochs = LeaderEpochs([(1, 10), (4, 20), (6, 35)])
    assert epochs.end_of(6, 50) == (6, 50)
    assert epochs.end_of(5, 50) == (4, 35)
    assert epochs.end_of(4, 50) == (4, 35)
    assert epochs.end_of(2, 50) == (1, 20)
    assert epochs.end_of(0, 50) == (0, 10), "deleted from the front"
    assert epochs.end_of(7, 50) == (-1, -1)
    assert epochs.end_of(-1, 50) == (-1, -1)
    assert LeaderEpochs().end_of(0, 0) == (-1, -1)


def test_an_epoch_without_records_leaves_no_trace():
    epochs = LeaderEpochs([(1, 0)])
    assert epochs.assign(2, 5)
    assert epochs.assign(3, 5)
    assert epochs.entries == [(1, 0), (3, 5)]
    assert not epochs.assign(3, 9)
    assert not epochs.assign(2, 9)
    assert not epochs.assign(-1, 9)


def test_cutting_both_ends():
    epochs = LeaderEpochs([(1, 10), (4, 20), (6, 35)])
    assert epochs.cut_end(35)
    assert (epochs.entries, epochs.latest) == ([(1, 10), (4, 20)], 4)
    assert not epochs.cut_end(35)
    assert epochs.cut_start(25)
    assert epochs.entries == [(4, 25)]
    assert epochs.cut_end(0)
    assert epochs.latest == -1


@given(st.lists(st.integers(0, 8), max_size=40), st.integers(0, 9))
def test_against_every_record_carrying_its_epoch(steps, asked):
    written, current = [], 0
    epochs = LeaderEpochs()
    for step in steps:
        current = max(current, step)
        epochs.assign(current, len(written))
        written.append(current)
    for offset, epoch in enumerate(written):
        assert epochs.of(offset) == epoch
    found, end = epochs.end_of(asked, len(written))
    if written and written[0] <= asked <= written[-1]:
        assert found == max(epoch for epoch in written if epoch <= asked)
        assert end == sum(epoch <= asked for epoch in written)


def test_the_log_corrects_what_was_noted_of_a_history_that_lost():
    epochs = LeaderEpochs([(4, 0), (6, 120)])
    for epoch, offset in ((4, 90), (5, 95), (5, 110), (5, 120), (7, 130)):
        epochs.learn(epoch, offset)
    assert (epochs.entries, epochs.latest) == ([(4, 0), (5, 95), (7, 130)], 7)


def test_what_is_noted_of_offsets_whose_batches_are_gone_stays():
    epochs = LeaderEpochs([(4, 0), (5, 60), (6, 90)])
    for epoch, offset in ((4, 50), (5, 70), (6, 95)):
        epochs.learn(epoch, offset)
    assert epochs.entries == [(4, 0), (5, 60), (6, 90)]
