"""The options of `format("millpond_delta")`, each declared once: parsing, checks and docs read it here.

Names are case-insensitive, as everywhere in Spark. Options with the prefix `storage.` are passed to the object store.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from millpond.base.settings import AnySetting, Registry, Setting, SettingError, Settings, Value, at_least, one_of
from millpond.spark.lake.errors import LakeOptionError
from millpond.spark.lake.location import Location

Way: TypeAlias = Literal["read", "write"]

PATH: Final = Setting(
    "path", "", "Folder or URL of the table, also given as the argument of `start(…)`, `save(…)` and `load(…)`."
)
MODE: Final = Setting(
    "mode",
    "append",
    "`append` adds rows; `upsert` replaces rows with the same keys.",
    check=one_of("append", "upsert"),
)
KEYS: Final[Setting[tuple[str, ...]]] = Setting("keys", (), "Columns that name a row, for `upsert`; never null.")
ORDER_BY: Final[Setting[tuple[str, ...]]] = Setting(
    "orderBy",
    (),
    "Columns that decide which of several rows with the same keys in one batch is the last. Without it, the same "
    "keys in two tasks of one batch are an error.",
)
IGNORE_LATE: Final = Setting(
    "ignoreLate", False, "Ignore a row that is older by `orderBy` than the one in the table."
)
DELETE_WHEN: Final = Setting(
    "deleteWhen",
    "",
    "A boolean column: where it is true, the row with these keys is deleted. Not stored in the table.",
)
PARTITION_BY: Final[Setting[tuple[str, ...]]] = Setting(
    "partitionBy", (), "Partition columns of a table that does not exist yet."
)
TARGET_FILE_BYTES: Final = Setting(
    "targetFileBytes",
    128 << 20,
    "Files are closed at this size, and compaction aims at it. 16 MiB for `upsert`, which rewrites whole files.",
    check=at_least(1 << 16),
)
UPSERT_FILE_BYTES: Final = 16 << 20
COMPACT_EVERY: Final = Setting(
    "compactEvery", 0, "Compact small files after this many batches of the stream; 0 means never.", check=at_least(0)
)
VACUUM_HOURS: Final = Setting(
    "vacuumHours",
    0,
    "After each compaction, delete files that were removed from the table this long ago; 0 means never.",
    check=at_least(0),
)
VACUUM_SHORT: Final = Setting(
    "vacuumShort", False, "Allow `vacuumHours` below the retention of the table (a week by default)."
)
UPSERT_BYTES_MAX: Final = Setting(
    "upsertBytesMax",
    1 << 30,
    "The most bytes of changed rows that the driver merges in one batch.",
    check=at_least(1 << 20),
)
TXN_APP_ID: Final = Setting(
    "txnAppId",
    "",
    "For `df.write`: with `txnVersion`, a write that was already done is skipped; other rows under the same number "
    "are an error.",
)
TXN_VERSION: Final = Setting(
    "txnVersion", -1, "For `df.write`: the number of this write, ascending for one `txnAppId`."
)
OF_STREAM: Final = Setting(
    "ofStream",
    False,
    "For `df.write` inside `foreachBatch`: write at most once for every batch of the surrounding query.",
)
VERSION_AS_OF: Final = Setting("versionAsOf", -1, "Read this version of the table; -1 is the newest.")
TIMESTAMP_AS_OF: Final = Setting("timestampAsOf", "", "Read the table as it was at this time (ISO 8601).")

_VERSIONS: Final[tuple[AnySetting, ...]] = (VERSION_AS_OF, TIMESTAMP_AS_OF)
READ: Final[tuple[AnySetting, ...]] = (PATH, *_VERSIONS)
WRITE: Final[tuple[AnySetting, ...]] = tuple(
    each for each in list(globals().values()) if isinstance(each, Setting) and each not in _VERSIONS
)

RETENTION_HOURS: Final = 168
"""Delta's default retention for the files of older versions."""
STORAGE: Final = "storage."
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself adds."""


@dataclass(frozen=True)
class ReadOptions:
    location: Location
    version: int | None
    timestamp: str | None


@dataclass(frozen=True)
class WriteOptions:
    location: Location
    is_upsert: bool = False
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    ignore_late: bool = False
    delete_when: str | None = None
    partition_by: tuple[str, ...] = ()
    target_file_bytes: int = TARGET_FILE_BYTES.default
    compact_every: int = 0
    vacuum_hours: int = 0
    vacuum_short: bool = False
    upsert_bytes_max: int = UPSERT_BYTES_MAX.default
    txn_app_id: str | None = None
    txn_version: int = -1
    of_stream: bool = False


def read_options(texts: Mapping[str, str]) -> ReadOptions:
    settings, location = _parse(texts, READ, "read")
    version, timestamp = settings[VERSION_AS_OF], settings[TIMESTAMP_AS_OF]
    if version >= 0 and timestamp:
        raise LakeOptionError("versionAsOf and timestampAsOf both name a version: give only one of them")
    return ReadOptions(location, version if version >= 0 else None, timestamp or None)


def write_options(texts: Mapping[str, str]) -> WriteOptions:
    settings, location = _parse(texts, WRITE, "write")
    is_upsert = settings[MODE] == "upsert"
    own_size = not is_upsert or TARGET_FILE_BYTES.name in settings.overrides
    options = WriteOptions(
        location=location,
        is_upsert=is_upsert,
        keys=settings[KEYS],
        order_by=settings[ORDER_BY],
        ignore_late=settings[IGNORE_LATE],
        delete_when=settings[DELETE_WHEN] or None,
        partition_by=settings[PARTITION_BY],
        target_file_bytes=settings[TARGET_FILE_BYTES] if own_size else UPSERT_FILE_BYTES,
        compact_every=settings[COMPACT_EVERY],
        vacuum_hours=settings[VACUUM_HOURS],
        vacuum_short=settings[VACUUM_SHORT],
        upsert_bytes_max=settings[UPSERT_BYTES_MAX],
        txn_app_id=settings[TXN_APP_ID] or None,
        txn_version=settings[TXN_VERSION],
        of_stream=settings[OF_STREAM],
    )
    _check_together(options)
    return options


def _check_together(options: WriteOptions) -> None:
    if options.is_upsert and not options.keys:
        raise LakeOptionError('mode=upsert needs the columns that name a row: option("keys", "id")')
    if not options.is_upsert and (options.keys or options.order_by or options.delete_when or options.ignore_late):
        raise LakeOptionError('keys, orderBy, deleteWhen and ignoreLate are for option("mode", "upsert")')
    if options.ignore_late and not options.order_by:
        raise LakeOptionError("ignoreLate needs orderBy, to decide which row is late")
    if options.delete_when in (*options.keys, *options.order_by, *options.partition_by):
        raise LakeOptionError("deleteWhen needs a separate column: it is not stored in the table")
    if options.vacuum_hours and not options.compact_every:
        raise LakeOptionError("vacuumHours needs compactEvery: old files are deleted after a compaction")
    if options.of_stream and options.txn_app_id is not None:
        raise LakeOptionError(
            "ofStream uses the id and the batch number of the stream: leave txnAppId and txnVersion out"
        )
    if 0 < options.vacuum_hours < RETENTION_HOURS and not options.vacuum_short:
        raise LakeOptionError(
            f"vacuumHours={options.vacuum_hours} is below the retention of {RETENTION_HOURS} hours, so readers and "
            'writers at work could lose their files: keep them longer, or set option("vacuumShort", "true")'
        )
    if (options.txn_app_id is None) != (options.txn_version < 0):
        raise LakeOptionError("txnAppId and txnVersion belong together: give both, with txnVersion from 0 upward")


def _parse(texts: Mapping[str, str], declared: tuple[AnySetting, ...], way: Way) -> tuple[Settings, Location]:
    by_name = {setting.name.lower(): setting for setting in declared}
    storage: dict[str, str] = {}
    values: dict[str, Value] = {}
    for name, text in texts.items():
        plain = name.lower()
        if plain.startswith(STORAGE):
            storage[name[len(STORAGE) :]] = text
        elif plain not in SPARKS_OWN:
            setting = by_name.get(plain)
            if setting is None:
                raise LakeOptionError(_unknown(name, by_name, way))
            try:
                values[setting.name] = setting.parse(text)
            except SettingError as error:
                raise LakeOptionError(str(error)) from None
    settings = Settings(Registry("lake", declared), values)
    if not settings[PATH]:
        raise LakeOptionError('no table given: set option("path", "/lake/orders")')
    return settings, Location.of(settings[PATH], storage)


def _unknown(name: str, by_name: Mapping[str, AnySetting], way: Way) -> str:
    near = difflib.get_close_matches(name.lower(), by_name, n=1)
    hint = f"; did you mean {by_name[near[0]].name}?" if near else ""
    elsewhere = {setting.name.lower() for setting in (*READ, *WRITE)} - by_name.keys()
    if name.lower() in elsewhere:
        hint = f": it is for {'writing' if way == 'read' else 'reading'}"
    return f"unknown option {name} of millpond_delta{hint}"
