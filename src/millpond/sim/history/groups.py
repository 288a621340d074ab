"""What group members and transactional workers did and observed; impossible observations are reported at once.

A member owns its partitions until it gives them up, or until a whole session has passed without a heartbeat, after
which the coordinator may have removed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

NOTHING_COMMITTED = -1


class Fate(Enum):
    """What is known of the outcome of a request."""

    OPEN = "open"
    """There is no response, or it was lost: the change may have been made, or may still be."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class OffsetCommit:
    """One partition's part of one commit."""

    member: str
    generation: int
    partition: int
    offset: int
    fate: Fate = Fate.OPEN
    settled_ms: int = -1


@dataclass(slots=True, eq=False)
class CopyTransaction:
    """One transaction of a worker: its input, and what is known of its outcome."""

    name: str
    records: dict[str, int] = field(default_factory=dict)
    """The output partition of each record, by its tag."""
    offsets: dict[int, int] = field(default_factory=dict)
    """By input partition."""
    commit_asked_ms: int = -1
    fate: Fate = Fate.REFUSED
    """The fate of the commit: refused until it is requested."""
    settled_ms: int = -1

    @property
    def may_count(self) -> bool:
        return self.fate is not Fate.REFUSED


@dataclass(slots=True)
class Holding:
    partitions: frozenset[int]
    until_ms: int


@dataclass(slots=True)
class CoordinationHistory:
    """Everything that happened to one group and its transactions."""

    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    shares: dict[int, dict[str, frozenset[int]]] = field(default_factory=dict)
    """The assignment of each member, by generation of a classic group."""
    is_one_kind: bool = True
    """Whether all members speak the same protocol; else each has its own epoch."""
    holdings: dict[str, Holding] = field(default_factory=dict)
    commits: list[OffsetCommit] = field(default_factory=list)
    processed: dict[tuple[int, int], int] = field(default_factory=dict)
    """How often each input partition and offset was processed."""
    reached: dict[int, int] = field(default_factory=dict)
    """The highest committed offset that any client saw, by input partition."""
    transactions: dict[str, CopyTransaction] = field(default_factory=dict)

    def note(self, now_ms: int, line: str) -> None:
        self.lines.append(f"{now_ms} {line}")

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def report(self, now_ms: int, finding: str) -> None:
        self.violations.append(f"at {now_ms} ms: {finding}")

    # Owners

    def share(self, now_ms: int, generation: int, member: str, partitions: frozenset[int]) -> None:
        """A member of a classic group got its assignment in a generation."""
        if not self.is_one_kind:
            return
        told = self.shares.setdefault(generation, {})
        for other, theirs in told.items():
            if other != member and theirs & partitions:
                self.report(
                    now_ms, f"generation {generation} gives {sorted(theirs & partitions)} to {other} and {member}"
                )
        if told.setdefault(member, partitions) != partitions:
            self.report(
                now_ms, f"generation {generation} gave {member} {sorted(told[member])}, now {sorted(partitions)}"
            )

    def hold(self, now_ms: int, member: str, partitions: frozenset[int], until_ms: int) -> None:
        """The member works on these partitions from now on; it may have paused too long to own them still."""
        for other, holding in self.holdings.items():
            shared = holding.partitions & partitions
            if other != member and shared and now_ms < min(until_ms, holding.until_ms):
                self.report(
                    now_ms, f"{member} was given {sorted(shared)}, which {other} has until {holding.until_ms} ms"
                )
        self.holdings[member] = Holding(partitions, until_ms)
        self.count("assignments")
        self.note(now_ms, f"{member} owns {sorted(partitions)}")

    def renew(self, member: str, until_ms: int) -> None:
        holding = self.holdings.get(member)
        if holding is not None:
            holding.until_ms = max(holding.until_ms, until_ms)

    def let_go(self, now_ms: int, member: str) -> None:
        if self.holdings.pop(member, None) is not None:
            self.note(now_ms, f"{member} lets go")

    # Work and offsets of groups without transactions

    def process(self, partition: int, offset: int) -> None:
        self.processed[partition, offset] = self.processed.get((partition, offset), 0) + 1

    def request_commit(self, member: str, generation: int, positions: Mapping[int, int]) -> list[OffsetCommit]:
        asked = [OffsetCommit(member, generation, partition, offset) for partition, offset in positions.items()]
        self.commits += asked
        return asked

    def settle(self, now_ms: int, commit: OffsetCommit, fate: Fate) -> None:
        commit.fate, commit.settled_ms = fate, now_ms
        if fate is Fate.DONE:
            self._reach(commit.partition, commit.offset)
        self.count(f"commits {fate.value}")
        self.note(
            now_ms, f"{commit.member}/{commit.generation} commits {commit.partition}:{commit.offset} {fate.value}"
        )

    def check_offset(self, now_ms: int, sent_ms: int, who: str, partition: int, offset: int) -> None:
        """A fetched offset is one that a member committed, and not less than an acknowledged one."""
        mine = [commit for commit in self.commits if commit.partition == partition]
        safe = [commit for commit in mine if commit.fate is Fate.DONE and commit.settled_ms <= sent_ms]
        latest = max((commit.generation for commit in safe), default=-1)
        floor = max((commit.offset for commit in safe if commit.generation == latest), default=NOTHING_COMMITTED)
        # A commit without a response may still be applied, but not in a later generation.
        loose = [commit.offset for commit in mine if commit.fate is Fate.OPEN and commit.generation >= latest]
        possible = [commit.offset for commit in mine if commit.fate is not Fate.REFUSED]
        if offset < floor and offset not in loose:
            self.report(now_ms, f"{who} heard {offset} for partition {partition}, after {floor} was acknowledged")
        if offset not in possible and not (offset == NOTHING_COMMITTED and not safe):
            self.report(now_ms, f"{who} heard {offset} for partition {partition}, which was never committed")
        self._reach(partition, offset)

    # Work and offsets inside transactions

    def check_stable_offset(self, now_ms: int, sent_ms: int, who: str, partition: int, offset: int) -> None:
        """The same for offsets that transactions commit, while none of these is pending."""
        floor = max(self._transactional_offsets(partition, decided_by_ms=sent_ms), default=NOTHING_COMMITTED)
        if offset < floor:
            self.report(now_ms, f"{who} heard {offset} for partition {partition}, after {floor} was committed")
        self.check_pending_offset(now_ms, who, partition, offset)
        self._reach(partition, offset)

    def check_pending_offset(self, now_ms: int, who: str, partition: int, offset: int) -> None:
        """A fetched offset is one that a transaction committed; those of pending transactions must not be visible."""
        if offset != NOTHING_COMMITTED and offset not in self._transactional_offsets(partition):
            self.report(now_ms, f"{who} heard {offset} for partition {partition}, which no transaction committed")

    def _transactional_offsets(self, partition: int, decided_by_ms: int | None = None) -> Iterable[int]:
        return [
            each.offsets[partition]
            for each in self.transactions.values()
            if partition in each.offsets
            and each.may_count
            and (decided_by_ms is None or (each.fate is Fate.DONE and each.settled_ms <= decided_by_ms))
        ]

    def begin(self, name: str) -> CopyTransaction:
        assert name not in self.transactions
        self.count("transactions begun")
        transaction = self.transactions[name] = CopyTransaction(name)
        return transaction

    def request_commit_of(self, now_ms: int, transaction: CopyTransaction) -> None:
        """The commit is sent: from now on it may be applied."""
        if transaction.commit_asked_ms < 0:
            transaction.commit_asked_ms = now_ms
            transaction.fate = Fate.OPEN
            self.note(now_ms, f"{transaction.name} asks for its commit")

    def ended(self, now_ms: int, transaction: CopyTransaction, fate: Fate) -> None:
        transaction.fate, transaction.settled_ms = fate, now_ms
        if fate is Fate.DONE:
            for partition, offset in transaction.offsets.items():
                self._reach(partition, offset)
        self.count(f"transactions {fate.value}")
        self.note(now_ms, f"{transaction.name} {fate.value} {transaction.offsets}")

    def _reach(self, partition: int, offset: int) -> None:
        self.reached[partition] = max(self.reached.get(partition, NOTHING_COMMITTED), offset)
