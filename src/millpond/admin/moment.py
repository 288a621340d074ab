"""The moment of a backup: the position up to which each log of a running node is copied.

Logs only grow. So the sizes of all are read in one go, which takes milliseconds, and the logs are copied up to there,
however long that takes. Transactions are whole if none has changed its state while the sizes were read: the
coordinators know every transaction with records, and end it. On a busy node it may take several attempts to find such
a moment.

Groups' offsets come before the records that they refer to, and the metadata last, so that it has every topic.
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
"""How often the logs are listed."""
TRIES: Final = 60
"""How often, each time, the sizes are read."""
PAUSE_SECONDS: Final = 0.003


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as it was."""

    files: tuple[tuple[str, int], ...]
    """Names and numbers (inodes) of its segments."""
    size: int | None = None
    """Size of the last segment; None if it has not been read."""
    snapshots: tuple[str, ...] = ()
    """Metadata snapshots; only the metadata log has them."""

    def remaining_in(self, now: LogState) -> tuple[str, ...] | None:
        """The remaining segments, if only old ones were deleted; None if others replaced them.

        Compacted segments may lack records that were replaced after the moment.
        """
        numbers = dict(now.files)
        if any(numbers.get(name, number) != number for name, number in self.files):
            return None
        names = tuple(name for name, _ in self.files)
        left = tuple(name for name in names if name in numbers)
        return left if left and left == names[-len(left) :] else None


@dataclass(frozen=True, slots=True)
class Moment:
    logs: Mapping[str, LogState]
    """By partition folder, in the order in which they should be copied."""
    is_one: bool
    """Whether no transaction has changed its state meanwhile."""


def find_moment(source: Path, roots: Sequence[str]) -> Moment:
    """Takes the moment of all partitions in these folders under `source`."""
    moment: Moment | None = None
    for _ in range(LISTS):
        logs = {folder: look_at(source / folder) for folder in _folders(source, roots)}
        moment = _quiet(source, logs)
        # A log that has rolled was measured at a segment that no longer grows.
        if moment.is_one and all(look_at(source / folder).files == each.files for folder, each in logs.items()):
            return moment
    assert moment is not None
    return Moment(moment.logs, is_one=False)


def _quiet(source: Path, logs: Mapping[str, LogState]) -> Moment:
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


def look_at(folder: Path) -> LogState:
    """The current files; none if the folder is gone."""
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
    return LogState(tuple(sorted(files)), None, tuple(sorted(snapshots)))


def _is_of_transactions(folder: str) -> bool:
    partition = read_partition_folder(PurePosixPath(folder).name)
    return partition is not None and partition.topic == TRANSACTION_STATE


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
