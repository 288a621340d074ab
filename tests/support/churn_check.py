"""Check the invariants of a group's workers, from what they logged.

1. Every record was read.
2. In a generation a partition has one reader. A classic generation is persisted only with its leader's assignment; a
   node that crashes before that starts it again under the same number. Until then no worker owns its partitions.
3. While a worker that was not stopped holds a partition, no other such worker does.
4. A worker that gets a partition starts at the group's committed offset, and reads on without a gap.
5. The group's committed offsets never decrease.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

FOREVER = 1 << 62
KNOWN_TO_BE_LOST = "lost"
LATE_QUERY = re.compile(r"\[(\d+)\]: timed offset query for .* in state active")
PAUSE = re.compile(r"Pause \S+ \[(\d+)\]: at offset (\d+) ")


@dataclass(frozen=True)
class Read:
    time_us: int
    generation: int
    partition: int
    first: int
    last: int
    is_assigned: bool = True
    """Whether the worker had its assignment in this generation, not only the generation's number."""


@dataclass(frozen=True)
class Commit:
    """One partition of a commit. Without a response it may or may not have been applied."""

    began_us: int
    ended_us: int
    partition: int
    offset: int
    is_done: bool


@dataclass
class Holding:
    """The period during which a worker holds a partition."""

    worker: str
    partition: int
    from_us: int
    until_us: int = FOREVER
    end: str = ""
    """revoke, lost, closing, or what the campaign did to the worker."""
    reads: list[Read] = field(default_factory=list)


@dataclass
class Diary:
    """Everything that one worker did."""

    name: str
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    sent_back: set[int] = field(default_factory=set)
    """Partitions in which librdkafka itself went back to the beginning.

    It asks for the first offset of a partition that it has read nothing of. When the answer comes after the partition
    was taken away, it sets a timer to ask again, and the timer outlives that: it goes off half a second later in the
    next holding, which reads on from its committed offset meanwhile. Such a query "in state active"
    has no other cause.
    """
    paused_at: set[tuple[int, int]] = field(default_factory=set)
    """Partitions and offsets at which librdkafka paused while it took in a new assignment.

    It fetches again from there. A record that the application takes in that moment comes a second time.
    """


def read_diary(path: Path, ended_us: int, stops_us: Iterable[int] = ()) -> Diary:
    """`ended_us` is when the process was killed or had gone; `stops_us` are the times at which it was stopped."""
    diary = Diary(path.stem)
    held: dict[int, Holding] = {}
    committing: tuple[int, list[str]] | None = None
    assigned_generation = -1
    for line in path.read_text().splitlines() if path.exists() else ():
        what, *words = line.split()
        time_us = int(words[0])
        match what:
            case "assign":
                assigned_generation = int(words[1])
                for partition in map(int, words[2:]):
                    held[partition] = Holding(diary.name, partition, time_us)
                    diary.holdings.append(held[partition])
            case "revoke" | "lost":
                for partition in map(int, words[2:]):
                    if holding := held.pop(partition, None):
                        holding.until_us, holding.end = time_us, what
            case "read":
                generation, *where = map(int, words[1:])
                result = Read(time_us, generation, *where, generation == assigned_generation)
                diary.reads.append(result)
                if result.partition in held:
                    held[result.partition].reads.append(result)
            case "committing":
                committing = time_us, words[2:]
            case "committed":
                assert committing is not None
                diary.commits += _commits(*committing, time_us, is_done=words[1] == "0")
                committing = None
            case "closing":
                for holding in held.values():
                    holding.until_us, holding.end = time_us, what
                held.clear()
    if committing is not None:
        diary.commits += _commits(*committing, FOREVER, is_done=False)
    for holding in held.values():
        holding.until_us, holding.end = ended_us, "killed"
    _cut_at_stops(diary, sorted(stops_us))
    errors = path.with_suffix(".err")
    journal = errors.read_text() if errors.exists() else ""
    diary.sent_back = {int(each) for each in LATE_QUERY.findall(journal)}
    diary.paused_at = {(int(partition), int(offset)) for partition, offset in PAUSE.findall(journal)}
    return diary


def _commits(began_us: int, texts: list[str], ended_us: int, *, is_done: bool) -> list[Commit]:
    pairs = (map(int, each.split(":")) for each in texts)
    return [Commit(began_us, ended_us, partition, offset, is_done) for partition, offset in pairs]


def _cut_at_stops(diary: Diary, stops_us: list[int]) -> None:
    """A stopped worker cannot know what happens to its partitions; from then on it counts as holding none."""
    for holding in diary.holdings:
        for stop_us in stops_us:
            if holding.from_us <= stop_us < holding.until_us:
                holding.until_us, holding.end = stop_us, "stopped"
                break


# The rules.


def findings(diaries: list[Diary], ends: dict[int, int], *, generations_recur: bool = False) -> list[str]:
    """Everything that is wrong, as text; `ends` is how many records each partition has."""
    return [
        *_unread(diaries, ends),
        *_shared_in_a_generation(diaries, generations_recur),
        *_held_twice(diaries),
        *_wrong_starts_and_gaps(diaries),
        *_falling_commits(diaries),
    ]


def _unread(diaries: list[Diary], ends: dict[int, int]) -> list[str]:
    result = []
    for partition, end in ends.items():
        missing = set(range(end))
        for diary in diaries:
            for read in diary.reads:
                if read.partition == partition:
                    missing.difference_update(range(read.first, read.last + 1))
        if missing:
            result.append(
                f"partition {partition}: {len(missing)} of {end} were never read, the first is {min(missing)}"
            )
    return result


def _shared_in_a_generation(diaries: list[Diary], generations_recur: bool) -> list[str]:
    readers: dict[tuple[int, int], set[str]] = defaultdict(set)
    for diary in diaries:
        for read in diary.reads:
            # Outside of any generation: the worker knows that it was removed, and learns of the loss with its next
            # poll.
            if read.generation >= 0 and (read.is_assigned or not generations_recur):
                readers[read.partition, read.generation].add(diary.name)
    return [
        f"partition {partition} was read by {sorted(names)} in generation {generation}"
        for (partition, generation), names in sorted(readers.items())
        if len(names) > 1
    ]


def _held_twice(diaries: list[Diary]) -> list[str]:
    by_partition: dict[int, list[Holding]] = defaultdict(list)
    for diary in diaries:
        for holding in diary.holdings:
            # Workers that learn of a loss too late were fenced; other rules check that their commits were.
            if holding.end != KNOWN_TO_BE_LOST:
                by_partition[holding.partition].append(holding)
    result = []
    for holdings in by_partition.values():
        holdings.sort(key=lambda each: each.from_us)
        for first, second in pairwise(holdings):
            if second.from_us < first.until_us and first.worker != second.worker:
                overlap_ms = (min(first.until_us, second.until_us) - second.from_us) / 1000
                result.append(
                    f"partition {first.partition} was held by {first.worker} (until {first.end}) and by "
                    f"{second.worker} at the same time, for {overlap_ms:.1f} ms"
                )
    return result


class CommitHistory:
    """A partition's committed offset over time, as far as it can be known."""

    def __init__(self, commits: list[Commit]) -> None:
        done = sorted((each for each in commits if each.is_done), key=lambda each: each.ended_us)
        begun = sorted(commits, key=lambda each: each.began_us)
        self._ended, self._at_least = _running_max([(each.ended_us, each.offset) for each in done])
        self._began, self._at_most = _running_max([(each.began_us, each.offset) for each in begun])

    def at_least(self, time_us: int) -> int:
        """All commits that were acknowledged before this time count."""
        index = bisect_left(self._ended, time_us)
        return self._at_least[index - 1] if index else 0

    def at_most(self, time_us: int) -> int:
        """At most what any worker had tried to commit before this time."""
        index = bisect_left(self._began, time_us)
        return self._at_most[index - 1] if index else 0


def _running_max(points: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    times, maxima, highest = [], [], 0
    for time_us, offset in points:
        highest = max(highest, offset)
        times.append(time_us)
        maxima.append(highest)
    return times, maxima


def _histories(diaries: list[Diary]) -> dict[int, CommitHistory]:
    by_partition: dict[int, list[Commit]] = defaultdict(list)
    for diary in diaries:
        for commit in diary.commits:
            by_partition[commit.partition].append(commit)
    return defaultdict(
        lambda: CommitHistory([]), {partition: CommitHistory(each) for partition, each in by_partition.items()}
    )


def _wrong_starts_and_gaps(diaries: list[Diary]) -> list[str]:
    histories = _histories(diaries)
    sent_back = {partition for diary in diaries for partition in diary.sent_back}
    result = []
    for diary in diaries:
        for holding in diary.holdings:
            if not holding.reads:
                continue
            where = f"{holding.worker} in partition {holding.partition}"
            first = holding.reads[0]
            history = histories[holding.partition]
            # What others committed before this worker got the partition must count; what it commits itself cannot.
            least, most = history.at_least(holding.from_us), history.at_most(first.time_us)
            if holding.partition in sent_back:
                least = 0
            if not least <= first.first <= most:
                result.append(f"{where} began at {first.first}, but committed was from {least} to {most}")
            for before, after in pairwise(holding.reads):
                is_paused = (holding.partition, after.first) in diary.paused_at
                is_back = after.first <= before.last and (is_paused or holding.partition in diary.sent_back)
                if after.first != before.last + 1 and not is_back:
                    result.append(f"{where} read {after.first} after {before.last}")
    return result


def _falling_commits(diaries: list[Diary]) -> list[str]:
    histories = _histories(diaries)
    return [
        f"partition {commit.partition}: {commit.offset} was committed by {diary.name} after "
        f"{histories[commit.partition].at_least(commit.began_us)} had been"
        for diary in diaries
        for commit in diary.commits
        if commit.is_done
        and commit.partition not in diary.sent_back
        and commit.offset < histories[commit.partition].at_least(commit.began_us)
    ]
