"""The checkers find each thing that must not be, in evidence made by hand."""

from __future__ import annotations

from millpond.sim.clients.committed_reader import SeenRecord
from millpond.sim.coordination.checkers import check_copied, check_processed, check_sightings, check_transactions
from millpond.sim.history.groups import CoordinationHistory, CopyTransaction, Fate


def shown(tag: str, transaction: str = "t", *, partition: int = 0, offset: int = 0, seen_ms: int = 50) -> SeenRecord:
    return SeenRecord(partition, offset, tag, transaction, seen_ms)


def history_of(*fates: Fate) -> CoordinationHistory:
    """Transactions t0, t1, …, each with one record in each of two partitions."""
    history = CoordinationHistory()
    for number, fate in enumerate(fates):
        records = {f"{number}:0/0": 0, f"{number}:0/1": 1}
        transaction = CopyTransaction(f"t{number}", records, {number: 1}, commit_asked_ms=10, fate=fate)
        history.transactions[transaction.name] = transaction
    return history


def test_every_record_is_processed() -> None:
    history = CoordinationHistory()
    history.process(0, 0)
    history.process(0, 1)
    assert list(check_processed(history, {0: 2, 1: 0})) == []
    assert len(list(check_processed(history, {0: 3, 1: 1}))) == 2


def test_every_record_is_copied_once() -> None:
    once = [shown("0:0/0"), shown("0:0/1", partition=1)]
    assert list(check_copied({0: 1}, once, 2)) == []
    assert len(list(check_copied({0: 1}, once[:1], 2))) == 1
    assert len(list(check_copied({0: 1}, [*once, shown("0:0/0", "u", offset=5)], 2))) == 1
    assert len(list(check_copied({0: 1}, [*once, shown("0:9/0", offset=5)], 2))) == 1


def test_a_transaction_counts_everywhere_or_nowhere() -> None:
    whole = [shown("0:0/0", "t0"), shown("0:0/1", "t0", partition=1)]
    for fate in (Fate.DONE, Fate.OPEN):
        assert list(check_transactions(history_of(fate), whole)) == []
        assert len(list(check_transactions(history_of(fate), whole[:1]))) == 1
    assert list(check_transactions(history_of(Fate.OPEN), [])) == []
    assert len(list(check_transactions(history_of(Fate.DONE), []))) == 1


def test_what_was_refused_is_not_seen() -> None:
    whole = [shown("0:0/0", "t0"), shown("0:0/1", "t0", partition=1)]
    assert len(list(check_transactions(history_of(Fate.REFUSED), whole))) == 1
    assert len(list(check_transactions(history_of(), whole))) == 1


def test_what_was_seen_stays_and_was_not_early() -> None:
    history = history_of(Fate.DONE)
    final = [shown("0:0/0", "t0")]
    assert list(check_sightings(history, final, final)) == []
    assert len(list(check_sightings(history, [shown("0:0/0", "t0", offset=4)], final))) == 1
    assert len(list(check_sightings(history, [shown("0:0/0", "t0", seen_ms=9)], final))) == 1
