"""The moment that a backup shows: up to where each log of a running node is copied.

Logs only grow. So all of them are looked at in one go, which takes milliseconds, and copied later only so far,
however long that takes. Transactions are whole then, if none has changed its state while the logs were looked at: the
coordinators know of every one that has records, and end it. On a busy node such a moment is looked for for a while.

Groups' offsets come before the records that they point to, and the metadata last, so that it has every topic.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from millpond.log.names import LOG, read_offset_name, read_partition_folder
from millpond.metadata.image import COORDINATOR_TOPICS
from millpond.metadata.partition import METADATA_PARTITION

TRANSACTION_STATE: Final = "__transaction_state"
LISTS: Final = 5
"""So often it is listed what there is."""
TRIES: Final = 60
"""So often, each time, the sizes are looked at."""
PAUSE_SECONDS: Final = 0.003


@dataclass(frozen=True, slots=True)
class Seen:
    """A log as it was."""

    files: tuple[tuple[str, int], ...]
    """Names and numbers (inodes) of its segments."""
    size: int | None = None
    """Of the last of them; None if nobody has looked."""
    snapshots: tuple[str, ...] = ()
    """Of the metadata."""

    def still(self, now: Seen) -> tuple[str, ...] | None:
        """Those of its segments that are left, where only old ones were deleted; None where others took their place.

        Compaction puts others there, which may lack what a record of later has replaced.
        """
        numbers = dict(now.files)
        if any(numbers.get(name, number) != number for name, number in self.files):
            return None
        names = tuple(name for name, _ in self.files)
        left = tuple(name for name in names if name in numbers)
        return left if left and left == names[-len(left) :] else None


@dataclass(frozen=True, slots=True)
class Moment:
    logs: Mapping[str, Seen]
    """By the folders of partitions, in the order in which they should be copied."""
    is_one: bool
    """Whether no transaction has changed its state meanwhile."""


def find_moment(source: Path, roots: Sequence[str]) -> Moment:
    """Of all partitions in these folders under `source`."""
    moment: Moment | None = None
    for _ in range(LISTS):
        logs = {folder: look_at(source / folder) for folder in _folders(source, roots)}
        moment = _quiet(source, logs)
        # One that has begun another segment was looked at where nothing grows any more.
        if moment.is_one and all(look_at(source / folder).files == each.files for folder, each in logs.items()):
            return moment
    assert moment is not None
    return Moment(moment.logs, is_one=False)


def _quiet(source: Path, logs: Mapping[str, Seen]) -> Moment:
    """These logs with their sizes."""
    last = {folder: f"{source}/{folder}/{each.files[-1][0]}" for folder, each in logs.items() if each.files}
    states = [path for folder, path in last.items() if _is_of_transactions(folder)]
    tries = TRIES
    while True:
        before = [*map(_size_of, states)]
        sizes = {folder: _size_of(path) for folder, path in last.items()}
        is_one = before == [*map(_size_of, states)]
        tries -= 1
        if is_one or not tries:
            seen = {folder: replace(each, size=sizes.get(folder)) for folder, each in logs.items()}
            return Moment(seen, is_one)
        time.sleep(PAUSE_SECONDS)


def _folders(source: Path, roots: Iterable[str]) -> list[str]:
    ranked = []
    for root in roots:
        for name in os.listdir(source / root):
            partition = read_partition_folder(name)
            if partition is not None:
                is_other = 2 if partition == METADATA_PARTITION else 1
                rank = 0 if partition.topic in COORDINATOR_TOPICS else is_other
                ranked.append((rank, partition.topic, f"{root}{name}"))
    return [folder for _, _, folder in sorted(ranked)]


def look_at(folder: Path) -> Seen:
    """What files there are now; none where the folder is gone."""
    files, snapshots = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                offset = read_offset_name(entry.name)
                if offset is not None and offset[1] == LOG:
                    files.append((entry.name, entry.inode()))
                elif entry.name.endswith(".checkpoint") and entry.name[0].isdigit():
                    snapshots.append(entry.name)
    except FileNotFoundError:
        pass
    return Seen(tuple(sorted(files)), None, tuple(sorted(snapshots)))


def _is_of_transactions(folder: str) -> bool:
    partition = read_partition_folder(PurePosixPath(folder).name)
    return partition is not None and partition.topic == TRANSACTION_STATE


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
