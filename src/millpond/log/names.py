"""The names of files and folders of a log, as Kafka gives them."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from uuid import UUID

from millpond.base.ids import TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
BEGUN = ".begun"
"""Says that a replica was begun anew at this offset, with nothing before it; Kafka does not have it."""
FLOOR = ".floor"
"""The evidence floor, as the name of an empty file (`evidence_floor.py`); Kafka does not have it."""
INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_SUFFIXES = (*INDEX_SUFFIXES, LOG)
"""The log comes last: while it has its old name the segment has not moved yet."""

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"
"""A file that takes another's place once it is whole and safe."""
CUT = ".cut"
"""Bytes that had to be cut off although they may be whole, by recovery or because a leader lacks what was committed;
kept for a person to look at."""

EPOCHS_FILE = "leader-epoch-checkpoint"
METADATA_FILE = "partition.metadata"
UNSETTLED_FILE = "unsettled"
"""Indexes are being made again, because a compaction had not ended."""
FAILED_SYNC_FILE = "failed-sync"
"""Left by a log that a failed sync has closed; Kafka does not have it."""

CORES_FOLDER = "cores"
"""Within the data folder: the folders of all cores but the first. No partition can have such a name."""

SECURITY_FOLDER = "security"
"""Within the data folder: keys, certificates and settings of a secure node. No partition can have such a name."""

SECURE_MARK = ".secure"
"""In the data folder: its node has asked who comes, and does not come up where nobody is asked."""

AUDIT_FOLDER = "audit"
"""Within the data folder, the same: who did or was refused what."""

LOST_FILE = "lost-records"
"""In the data folder: recovery has cut off the end of a log, and the others have not been told yet."""

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_FILE = "recovery-point-offset-checkpoint"
START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
APPEND_TIMES_FILE = "append-times-checkpoint"

DELETE_FOLDER = "-delete"
STRAY_FOLDER = "-stray"
"""A folder that belongs to no topic: left for a person to look at, opened by nobody."""

_PARTITION_FOLDER = re.compile(r"(.+)-(\d{1,10})")
_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)")


_NAMES_KEPT = 4096
"""Thousands of partitions have files of the same names."""


@lru_cache(_NAMES_KEPT)
def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


@lru_cache(_NAMES_KEPT)
def read_offset_name(name: str) -> tuple[int, str] | None:
    """The offset and suffix of a segment's file or a snapshot; None for every other name."""
    match = _OFFSET_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def read_partition_folder(name: str) -> TopicPartition | None:
    """The partition that lives in a folder of this name; None if it is not a partition's folder."""
    match = _PARTITION_FOLDER.fullmatch(name)
    return TopicPartition(sys.intern(match[1]), int(match[2])) if match else None


def former_folder_name(partition: TopicPartition, unique: UUID, ending: str) -> str:
    """The name of a folder that is no partition any more; the unique part lets the same name be created again."""
    tail = f".{unique.hex}{ending}"
    # A file name has at most 255 bytes, and the topic may have used most of them.
    return partition.folder[: 255 - len(tail)] + tail
