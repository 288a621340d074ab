"""What must hold at the end of a run of groups and transactions. Each check yields sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millpond.sim.clients.committed_reader import SeenRecord
from millpond.sim.history.groups import CoordinationHistory, Fate


def check_processed(history: CoordinationHistory, ends: Mapping[int, int]) -> Iterator[str]:
    """Every record of the input was processed at least once."""
    for partition, end in ends.items():
        missing = [offset for offset in range(end) if (partition, offset) not in history.processed]
        if missing:
            yield f"input {partition}: offsets {missing[:10]} were never processed, {end} is committed"


def check_copied(ends: Mapping[int, int], shown: Sequence[SeenRecord], copies: int) -> Iterator[str]:
    """Every record of the input is in the output exactly once."""
    by_tag: dict[str, list[SeenRecord]] = {}
    for each in shown:
        by_tag.setdefault(each.tag, []).append(each)
    wanted = {
        f"{partition}:{offset}/{copy}": None
        for partition, end in ends.items()
        for offset in range(end)
        for copy in range(copies)
    }
    for tag in wanted:
        seen = by_tag.pop(tag, [])
        if not seen:
            yield f"the record {tag} was never copied"
        elif len(seen) > 1:
            yield f"the record {tag} was copied by {[each.transaction for each in seen]}"
    for tag in by_tag:
        yield f"the output has {tag}, which the input has not"


def check_transactions(history: CoordinationHistory, shown: Sequence[SeenRecord]) -> Iterator[str]:
    """A transaction is visible in all its partitions or none, and only if its commit was not refused."""
    by_transaction: dict[str, dict[str, int]] = {}
    for each in shown:
        by_transaction.setdefault(each.transaction, {})[each.tag] = each.partition
    for name, seen in by_transaction.items():
        if name not in history.transactions:
            yield f"the output has records of {name}, which was never begun"
        elif not history.transactions[name].may_count:
            yield f"{name} was not committed, but {sorted(seen)} are seen"
    for transaction in history.transactions.values():
        seen = by_transaction.get(transaction.name, {})
        if seen and seen != transaction.records:
            missing = sorted(transaction.records.keys() - seen.keys())
            yield f"{transaction.name} counts in part: {missing} are not seen, {sorted(seen)} are"
        if not seen and transaction.fate is Fate.DONE:
            yield f"{transaction.name} was committed and is not seen"


def check_sightings(
    history: CoordinationHistory, live: Sequence[SeenRecord], final: Sequence[SeenRecord]
) -> Iterator[str]:
    """Records that a reader saw during the run are still there at the end, and were not visible too early."""
    there = {(each.partition, each.offset): each for each in final}
    for each in live:
        known = there.get((each.partition, each.offset))
        if known is None or (known.tag, known.transaction) != (each.tag, each.transaction):
            yield f"{each.tag} of {each.transaction} was seen at {each.seen_ms} ms, and is not committed"
        transaction = history.transactions.get(each.transaction)
        if transaction is not None and not 0 <= transaction.commit_asked_ms <= each.seen_ms:
            yield f"{each.tag} of {each.transaction} was seen at {each.seen_ms} ms, before its commit was asked for"
