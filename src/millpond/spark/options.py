"""Every option of the Spark source and sink, declared once: name, default, meaning, and where it may be given.

Names and defaults are those of Spark's own Kafka source and sink, so that a job ports by changing one word. Readers,
writers, error messages and docs/spark_options.md all use the declarations here.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from millpond.base.names import DEAD_LETTERS_ENDING
from millpond.base.settings import SettingError, V, at_least, one_of
from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings
from millpond.remote.cluster import SETTINGS
from millpond.remote.errors import ConfigError
from millpond.remote.security import SETTINGS as SECURITY_SETTINGS
from millpond.spark import kafka_settings
from millpond.spark.option import BATCH, READS, STREAM, WRITE, WRITES
from millpond.spark.option import Option as Option
from millpond.spark.option import OptionError as OptionError
from millpond.spark.option import Where as Where

LOG = logging.getLogger("millpond.spark")

SUBSCRIBE = Option(
    "subscribe", "", "Topics to read, with commas between them.", where=READS, shown="one of the three is required"
)
SUBSCRIBE_PATTERN = Option(
    "subscribePattern", "", "Read the topics whose whole name matches this regular expression.", where=READS,
    shown="one of the three is required",
)  # fmt: skip
ASSIGN = Option(
    "assign", "", 'Partitions to read: `{"orders":[0,1]}`.', where=READS, shown="one of the three is required"
)
STARTING_TIMESTAMP = Option(
    "startingTimestamp", 0,
    "Start each partition at its first record of this time or later, in milliseconds. Overrides "
    "`startingOffsetsByTimestamp` and `startingOffsets`.",
    at_least(0), where=READS, shown="not used",
)  # fmt: skip
STARTING_OFFSETS_BY_TIMESTAMP = Option(
    "startingOffsetsByTimestamp", "",
    'The same for each partition: `{"orders":{"0":1700000000000}}`. Overrides `startingOffsets`.',
    where=READS, shown="not used",
)  # fmt: skip
STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY = Option(
    "startingOffsetsByTimestampStrategy", "error",
    "What to do if a partition has no record that late: `error`, or start at its `latest` offset.",
    one_of("error", "latest"), any_case=True, where=READS,
)  # fmt: skip
STARTING_OFFSETS = Option(
    "startingOffsets", "",
    'Where a new query starts: `earliest`, `latest`, or `{"orders":{"0":23,"1":-2}}` with -2 for earliest and -1 for '
    "latest. A query with a checkpoint continues where it stopped.",
    where=READS, shown="latest for streams, earliest for batches",
)  # fmt: skip
ENDING_TIMESTAMP = Option(
    "endingTimestamp", 0,
    "End before the first record of this time or later, in milliseconds; at the latest offset if there is none. "
    "Overrides `endingOffsetsByTimestamp` and `endingOffsets`.",
    at_least(0), where=BATCH, shown="not used",
)  # fmt: skip
ENDING_OFFSETS_BY_TIMESTAMP = Option(
    "endingOffsetsByTimestamp", "", "The same for each partition. Overrides `endingOffsets`.", where=BATCH,
    shown="not used",
)  # fmt: skip
ENDING_OFFSETS = Option(
    "endingOffsets", "latest",
    'Where a batch ends: `latest`, or `{"orders":{"0":50,"1":-1}}`, the offset after the last record.', where=BATCH,
)  # fmt: skip
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", True,
    "Fail when records that were to be read are gone (retention, a topic deleted or recreated). `false` warns and "
    "continues at the earliest available offset.",
    where=READS, harmless=True,
)  # fmt: skip
MAX_OFFSETS_PER_TRIGGER = Option(
    "maxOffsetsPerTrigger", 0,
    "The most offsets in one batch, shared among the partitions in proportion to their backlogs.",
    at_least(1), where=STREAM, shown="no limit", harmless=True,
)  # fmt: skip
MIN_OFFSETS_PER_TRIGGER = Option(
    "minOffsetsPerTrigger", 0,
    "Wait until this many offsets are available before a batch starts, for at most `maxTriggerDelay`.",
    at_least(1), where=STREAM, shown="no delay", harmless=True,
)  # fmt: skip
MAX_TRIGGER_DELAY_MS = Option(
    "maxTriggerDelay", 15 * 60_000, "How long `minOffsetsPerTrigger` may delay a batch.", is_duration=True,
    where=STREAM, shown="15m", harmless=True,
)  # fmt: skip
MIN_PARTITIONS = Option(
    "minPartitions", 0, "Split large ranges so that there are at least about this many tasks.", at_least(1),
    where=READS, shown="one task for each topic partition", harmless=True,
)  # fmt: skip
MAX_RECORDS_PER_PARTITION = Option(
    "maxRecordsPerPartition", 0, "Split ranges so that no task has more offsets than this.", at_least(1), where=READS,
    shown="no limit", harmless=True,
)  # fmt: skip
INCLUDE_HEADERS = Option(
    "includeHeaders", False, "Add the column `headers`: `array<struct<key:string,value:binary>>`.", where=READS,
    harmless=True,
)  # fmt: skip
GROUP_ID_PREFIX = Option(
    "groupIdPrefix", "",
    "Accepted, but has no effect: the source reads without a consumer group, so queries cannot disturb each other. "
    "To show the progress of a query as a group, see `commitGroup`.",
    where=READS, shown="not used", harmless=True,
)  # fmt: skip
POLL_TIMEOUT_MS = Option(
    "kafkaConsumer.pollTimeoutMs", 0, "How long a task waits for records before it fails.", is_duration=True,
    where=READS, shown="2m", harmless=True,
)  # fmt: skip
FETCH_OFFSET_RETRIES = Option(
    "fetchOffset.numRetries", 0,
    "Accepted, but has no effect: requests for offsets are repeated until `kafka.default.api.timeout.ms` has passed.",
    at_least(0), where=READS, shown="not used", harmless=True,
)  # fmt: skip
FETCH_OFFSET_RETRY_INTERVAL_MS = Option(
    "fetchOffset.retryIntervalMs", 0, "Accepted, but has no effect, like `fetchOffset.numRetries`.", is_duration=True,
    where=READS, shown="not used", harmless=True,
)  # fmt: skip
COMMIT_GROUP = Option(
    "commitGroup", "",
    "Commit the offsets that the query has finished as this consumer group, so that group tools show its lag. The "
    "query itself always starts from its checkpoint.",
    where=STREAM, shown="no commits",
)  # fmt: skip
VALUE_FORMAT = Option(
    "valueFormat", "raw", "`json` or `avro`: add the column `parsed`, the value read by `valueSchema`.",
    one_of("raw", "json", "avro"), any_case=True, where=READS,
)  # fmt: skip
VALUE_SCHEMA = Option(
    "valueSchema", "",
    "The schema of the value: Spark's notation (`id long, name string`), or an Avro schema as JSON.", where=READS,
    shown="required with `valueFormat`",
)  # fmt: skip
AVRO_PREFIX = Option(
    "avroPrefix", "none",
    "`confluent`: Avro values begin with a zero byte and a four-byte schema id, which are skipped.",
    one_of("none", "confluent"), any_case=True, where=READS,
)  # fmt: skip
BAD_RECORDS = Option(
    "badRecords", "fail",
    "A value that does not parse: `fail` the query; `null` keeps the row with `parsed` null and the reason in the "
    "column `fault`; `dead_letters` sends the record to `deadLetterTopic` and continues.",
    one_of("fail", "null", "dead_letters"), any_case=True, where=READS,
)  # fmt: skip
BAD_ENDING: Final = f".bad{DEAD_LETTERS_ENDING}"
"""The suffix of topics for bad records. It differs from that of workers, whose records are redriven to a group; no
group has failed these."""

DEAD_LETTER_TOPIC = Option(
    "deadLetterTopic", "", "Where `badRecords=dead_letters` sends bad records.", where=READS,
    shown="the topic's name and `.bad.dlq`",
)  # fmt: skip
TOPIC = Option(
    "topic", "", "Write all rows to this topic; without it the column `topic` names the topic of each row.",
    where=WRITES, shown="the column `topic`",
)  # fmt: skip
DELIVERY = Option(
    "delivery", "at_least_once",
    "`exactly_once` writes each batch of a stream in transactions: readers with isolation level read_committed see "
    "each row once, despite crashes.",
    one_of("at_least_once", "exactly_once"), any_case=True, where=WRITES,
)  # fmt: skip
INCLUDE_TIMESTAMPS = Option(
    "includeTimestamps", False, "Write the column `timestamp` as the time of the record, instead of the time of "
    "writing.", where=WRITES,
)  # fmt: skip
TRANSACTION_TIMEOUT_MS = Option(
    "transactionTimeout", 15 * 60_000,
    "How long a transaction of `delivery=exactly_once` may stay open: longer than a batch takes. The limit is the "
    "cluster's `transaction.max.timeout.ms`.",
    is_duration=True, where=WRITES, shown="15m",
)  # fmt: skip
TXN_APP_ID = Option(
    "txnAppId", "",
    "For `df.write` with `delivery=exactly_once`, as in foreachBatch: a name for the job. With `txnVersion`, a write "
    "into the same topic that was already done is skipped; other rows under the same number are an error.",
    where=WRITE, shown="each write is new",
)  # fmt: skip
TXN_VERSION = Option(
    "txnVersion", 0, "The number of this write, ascending for one `txnAppId`.", at_least(0), where=WRITE, shown="none"
)

OPTIONS: Final[tuple[Option[Any], ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Option))
"""In declaration order."""

_BY_NAME: Final[Mapping[str, Option[Any]]] = {each.name.lower(): each for each in OPTIONS}

KAFKA_PREFIX: Final = "kafka."

_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname", "owner", "provider", "comment", "external", "serialization.format"}
)
"""Options that Spark itself adds."""
_OF_SPARKS_TABLES: Final = "option."
"""The prefix under which a table of Spark's catalog has every option a second time."""

_BYTES_ONLY = "keys and values are bytes here: read or write them with Spark's functions, or see valueFormat"

KAFKA_REFUSED: Final[Mapping[str, tuple[frozenset[Where], str]]] = {
    "key.deserializer": (READS, _BYTES_ONLY),
    "value.deserializer": (READS, _BYTES_ONLY),
    "key.serializer": (WRITES, _BYTES_ONLY),
    "value.serializer": (WRITES, _BYTES_ONLY),
    "auto.offset.reset": (
        READS,
        "startingOffsets says where a new query starts; later its checkpoint does",
    ),
    "enable.auto.commit": (READS, "the checkpoint keeps the position; to show it as a group's, use commitGroup"),
    "interceptor.classes": (READS | WRITES, "Java classes cannot run here, and they could change the records"),
    "transactional.id": (WRITES, "transactions get their names from the query; use delivery=exactly_once"),
}
"""Settings of Kafka's clients that contradict what the source or sink does, where, and what to do instead."""

KAFKA_USED: Final = SETTINGS | {
    "isolation.level",
    "max.partition.fetch.bytes",
    "acks",
    "compression.type",
    "batch.size",
    "max.request.size",
    "buffer.memory",
    "max.in.flight.requests.per.connection",
    "delivery.timeout.ms",
}
"""Kafka client settings with an effect here. Others are accepted with a warning, as in Kafka's clients."""

_warned: set[str] = set()
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one reader or writer. `options[FAIL_ON_DATA_LOSS]` has the declared type."""

    where: Where
    kafka: Mapping[str, str] = field(repr=False)
    """The cluster's settings, without the prefix `kafka.`; bootstrap.servers is always among them."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The given values, by declared name."""

    def __getitem__(self, option: Option[V]) -> V:
        value: V = self.values.get(option.name, option.default)
        return value

    def get(self, option: Option[V]) -> V | None:
        """The given value of an option without a default."""
        return self.values.get(option.name)

    @property
    def bootstrap(self) -> str:
        return self.kafka["bootstrap.servers"]

    @property
    def isolation(self) -> Literal["read_uncommitted", "read_committed"]:
        return "read_committed" if self.kafka.get("isolation.level") == "read_committed" else "read_uncommitted"

    @property
    def is_streaming(self) -> bool:
        return self.where in ("readStream", "writeStream")


def read_options(texts: Mapping[str, str], where: Where) -> Options:
    """Parse and check a user's options. OptionError suggests what was probably meant."""
    kafka: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in texts.items():
        lower = name.lower()
        if lower in _OF_SPARK or lower.startswith(_OF_SPARKS_TABLES):
            continue
        if lower.startswith(KAFKA_PREFIX):
            setting = lower.removeprefix(KAFKA_PREFIX)
            kafka[setting] = _checked_setting(setting, str(value), where)
            continue
        option = _BY_NAME.get(lower)
        if option is None:
            raise _unknown(name, where)
        if where not in option.where:
            _misplaced(option, where)
            continue
        try:
            values[option.name] = option.parse(str(value))
        except SettingError as fault:
            raise OptionError(f"option {fault}") from None
    file_settings = _file_settings()
    kafka["bootstrap.servers"] = bootstrap_servers(
        kafka.get("bootstrap.servers"), file_settings.get("bootstrap.servers")
    )
    return Options(where, {**file_settings, **kafka}, values)


def _file_settings() -> dict[str, str]:
    """Login settings from MILLPOND_CLIENT_CONFIG: read on the driver and sent to the tasks."""
    try:
        file_settings = client_settings()
    except ConfigError as fault:
        raise OptionError(str(fault)) from None
    return {
        name: value
        for name, value in file_settings.items()
        if name in SECURITY_SETTINGS or name == "bootstrap.servers"
    }


def nearest(name: str, names: Collection[str]) -> str | None:
    """The nearest known name."""
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return by_lower[near[0]] if near else None


def _checked_setting(setting: str, value: str, where: Where) -> str:
    refused = KAFKA_REFUSED.get(setting)
    if refused is not None and where in refused[0]:
        raise OptionError(f"option kafka.{setting} cannot be set: {refused[1]}")
    if setting not in KAFKA_USED:
        if not kafka_settings.is_known(setting):
            near = difflib.get_close_matches(setting, KAFKA_USED | kafka_settings.NAMES, n=1)
            meant = f"; did you mean kafka.{near[0]}?" if near else ": no Kafka client has a setting of that name"
            raise OptionError(f"there is no setting kafka.{setting}{meant}")
        if setting not in _warned:
            _warned.add(setting)
            LOG.warning("kafka.%s has no effect here; docs/spark.md lists the settings that do", setting)
    if setting == "isolation.level" and value not in _ISOLATION_LEVELS:
        raise OptionError(
            f"option kafka.isolation.level cannot be {value!r}: it is one of {', '.join(_ISOLATION_LEVELS)}"
        )
    return value


def _unknown(name: str, where: Where) -> OptionError:
    if name.lower() == "path":
        how = "option topic" if where in WRITES else "option subscribe"
        return OptionError(f"a topic is named by {how}, not by a path")
    here = [each.name for each in OPTIONS if where in each.where]
    near = nearest(name, here)
    if near is None and "." in name:
        return OptionError(f"there is no option {name}; a setting of the Kafka client is written kafka.{name}")
    meant = f"; did you mean {near}?" if near else f"; there are {', '.join(here)} and kafka.*"
    return OptionError(f"there is no option {name}{meant}")


_WORDS: Final[Mapping[Where, str]] = {
    "read": "a batch read",
    "readStream": "a streaming read",
    "write": "a batch write",
    "writeStream": "a streaming write",
}


def _misplaced(option: Option[Any], where: Where) -> None:
    if option.harmless:
        LOG.warning("option %s has no effect on %s", option.name, _WORDS[where])
        return
    uses = " and ".join(_WORDS[each] for each in _WORDS if each in option.where)
    raise OptionError(f"option {option.name} is for {uses}, not for {_WORDS[where]}")
