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
"""A replica was restarted at this offset, with nothing before it. Not in Kafka."""
FLOOR = ".floor"
"""The evidence floor, as the name of an empty file (`evidence_floor.py`). Not in Kafka."""
INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_SUFFIXES = (*INDEX_SUFFIXES, LOG)
"""The log comes last: until it is renamed, the segment has not moved."""

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"
"""A file that replaces another once it is complete and synced."""
CUT = ".cut"
"""Bytes that were cut off although they may be valid, by recovery or because the leader lacks them; kept for
inspection."""

EPOCHS_FILE = "leader-epoch-checkpoint"
METADATA_FILE = "partition.metadata"
UNSETTLED_FILE = "unsettled"
"""Indexes are being rebuilt, because a compaction was interrupted."""
FAILED_SYNC_FILE = "failed-sync"
"""Left by a log that a failed sync has closed. Not in Kafka."""

CORES_FOLDER = "cores"
"""In the data folder: the folders of all cores but the first. No partition can have this name."""

SECURITY_FOLDER = "security"
"""In the data folder: keys, certificates and settings of a secure node. No partition can have this name."""

SECURE_MARK = ".secure"
"""In the data folder: the node required authentication, and does not start without it."""

AUDIT_FOLDER = "audit"
"""In the data folder: the audit log. No partition can have this name."""

LOST_FILE = "lost-records"
"""In the data folder: recovery cut off the end of a log, and the cluster does not know yet."""

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_FILE = "recovery-point-offset-checkpoint"
START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
APPEND_TIMES_FILE = "append-times-checkpoint"

DELETE_FOLDER = "-delete"
STRAY_FOLDER = "-stray"
"""A folder that belongs to no topic: never opened, kept for inspection."""

_PARTITION_FOLDER = re.compile(r"(.+)-(\d{1,10})")
_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)")


_NAMES_KEPT = 4096
"""Thousands of partitions have files of the same names."""


@lru_cache(_NAMES_KEPT)
def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


@lru_cache(_NAMES_KEPT)
def read_offset_name(name: str) -> tuple[int, str] | None:
    """The offset and suffix of a segment file or snapshot; None for every other name."""
    match = _OFFSET_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def read_partition_folder(name: str) -> TopicPartition | None:
    """The partition stored in a folder of this name; None if it is not a partition's folder."""
    match = _PARTITION_FOLDER.fullmatch(name)
    return TopicPartition(sys.intern(match[1]), int(match[2])) if match else None


def former_folder_name(partition: TopicPartition, unique: UUID, ending: str) -> str:
    """The name of a folder that is no longer a partition, unique so that its old name can be used again."""
    tail = f".{unique.hex}{ending}"
    # A file name has at most 255 bytes, and the topic may use most of them.
    return partition.folder[: 255 - len(tail)] + tail
