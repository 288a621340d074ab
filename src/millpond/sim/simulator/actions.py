"""User actions on a simulated cluster: each is one frozen value that is also JSON.

In JSON an action is a list: its word, then the fields that differ from their defaults. All external input is checked
here, against the bounds declared with each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias

from millpond.base.words import counted

NAME_SIGNS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_MAX: Final = 40
TEXT_MAX: Final = 200
KEYS_MAX: Final = 24
RECORDS_AT_ONCE_MAX: Final = 500
LATENCY_MS_MAX: Final = 2_000

NODES: Final = ("leader", "follower", "controller", "1", "2", "3", "4", "5")
"""Ways to name a node: by its id, or by its role when the action runs."""
PROTOCOLS: Final = ("eager", "cooperative", "consumer")
COMMITS: Final = ("after", "before", "never")
ENDINGS: Final = ("commit", "abort", "hang")
SHARE_CONSUMERS_MAX: Final = 40

TOPIC_SETTINGS: Final = frozenset(
    {
        "cleanup.policy",
        "flush.ack",
        "min.insync.replicas",
        "min.cleanable.dirty.ratio",
        "retention.bytes",
        "retention.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)

GROUP_SETTINGS: Final = (
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.isolation.level",
    "share.record.lock.duration.ms",
)


class BadAction(Exception):
    """The action is invalid; the message says what is expected."""


def name(default: str, *, is_optional: bool = False) -> Any:
    return field(default=default, metadata={"kind": "name", "is_optional": is_optional})


def text(default: str = "") -> Any:
    return field(default=default, metadata={"kind": "text"})


def number(default: int, lowest: int, highest: int) -> Any:
    return field(default=default, metadata={"kind": "number", "lowest": lowest, "highest": highest})


def flag(default: bool) -> Any:
    return field(default=default, metadata={"kind": "flag"})


def one_of(default: str, choices: tuple[str, ...]) -> Any:
    return field(default=default, metadata={"kind": "choice", "choices": choices})


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Make a topic."""

    WORD: ClassVar = "topic"
    topic: str = name("orders")
    partitions: int = number(3, 1, 12)
    replication: int = number(3, 1, 5)
    min_insync: int = number(1, 1, 5)


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Change a setting of a topic."""

    WORD: ClassVar = "set"
    topic: str = name("orders")
    setting: str = one_of("retention.ms", tuple(sorted(TOPIC_SETTINGS)))
    value: str = text("5000")


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Set the number of partitions of a topic."""

    WORD: ClassVar = "partitions"
    topic: str = name("orders")
    partitions: int = number(6, 1, 12)


@dataclass(frozen=True, slots=True)
class Produce:
    """Send records: so many, with these keys by turns (none: without keys), one every so often."""

    WORD: ClassVar = "produce"
    topic: str = name("orders")
    count: int = number(1, 1, RECORDS_AT_ONCE_MAX)
    keys: tuple[str, ...] = field(default=(), metadata={"kind": "keys"})
    value: str = text()
    acks: str = one_of("all", ("0", "1", "all"))
    idempotent: bool = flag(True)
    """With acks=all: the broker recognises retries by their sequence numbers."""
    every_ms: int = number(0, 0, 2_000)
    salt: int = number(0, 0, 12)
    """If not 0, each key gets one of this many suffixes in turn."""
    producer: str = name("producer")
    buffer: int = number(100, 1, 500)
    """Limit of records buffered in the producer; beyond it, sending blocks."""


@dataclass(frozen=True, slots=True)
class Transact:
    """Write records to all partitions in one transaction, hold it open for a while, and end it."""

    WORD: ClassVar = "transaction"
    topic: str = name("orders")
    count: int = number(3, 1, 24)
    ending: str = one_of("commit", ENDINGS)
    hold_ms: int = number(500, 0, 20_000)
    producer: str = name("cashier")


@dataclass(frozen=True, slots=True)
class AddConsumer:
    """Start a consumer. Of one that is there already, the process is started again."""

    WORD: ClassVar = "consumer"
    consumer: str = name("billing-1")
    group: str = name("billing")
    topic: str = name("orders")
    protocol: str = one_of("cooperative", PROTOCOLS)
    is_static: bool = flag(False)
    commit: str = one_of("after", COMMITS)
    work_ms: int = number(5, 0, 2_000)
    poll_max: int = number(5, 1, 100)
    read_committed: bool = flag(False)
    dead_letters: bool = flag(False)
    deduplicates: bool = flag(False)
    """Whether the consumer recognises processed records by their ids and skips them."""
    output: str = name("", is_optional=True)
    """If set, the consumer writes its result for each record to this topic, in one transaction with its offsets."""


@dataclass(frozen=True, slots=True)
class AddShareConsumer:
    """Start a worker of a queue: a member of a share group. Of several, the names are numbered."""

    WORD: ClassVar = "share"
    consumer: str = name("worker")
    count: int = number(1, 1, SHARE_CONSUMERS_MAX)
    group: str = name("jobs")
    topic: str = name("orders")
    work_ms: int = number(5, 0, 10_000)
    poll_max: int = number(1, 1, 100)
    """Records that it acquires at a time."""
    renews: bool = flag(False)
    """Whether it renews its locks while it works."""

    @property
    def names(self) -> tuple[str, ...]:
        if self.count == 1:
            return (self.consumer,)
        return tuple(f"{self.consumer}-{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True)
class SetGroupConfig:
    """Change a setting of a share group."""

    WORD: ClassVar = "group"
    group: str = name("jobs")
    setting: str = one_of("share.record.lock.duration.ms", GROUP_SETTINGS)
    value: str = text("2000")


@dataclass(frozen=True, slots=True)
class StopConsumer:
    """Let a consumer leave its group in order."""

    WORD: ClassVar = "leave"
    consumer: str = name("billing-1")


@dataclass(frozen=True, slots=True)
class CrashConsumer:
    """Kill a consumer: now, or between the two things that it does to each poll, whichever comes first."""

    WORD: ClassVar = "kill"
    consumer: str = name("billing-1")
    between: bool = flag(False)


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """Set the committed offsets of a group without members to the beginning, or to another offset."""

    WORD: ClassVar = "reset"
    group: str = name("billing")
    topic: str = name("orders")
    offset: int = number(0, 0, 1_000_000)


@dataclass(frozen=True, slots=True)
class StopNode:
    """A node goes: its process alone, or with the power and what the disk's cache had."""

    WORD: ClassVar = "down"
    node: str = one_of("leader", NODES)
    power: bool = flag(False)
    topic: str = name("orders")
    partition: int = number(0, 0, 11)


@dataclass(frozen=True, slots=True)
class StartNode:
    """A node comes back: this one, the first that went down, or all that are down."""

    WORD: ClassVar = "up"
    node: str = one_of("all", ("all", "first", "1", "2", "3", "4", "5"))


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing passes between two of them any more, or only one way. `others` are all other nodes."""

    WORD: ClassVar = "cut"
    one: str = name("leader")
    other: str = name("others")
    one_way: bool = flag(False)
    topic: str = name("orders")
    partition: int = number(0, 0, 11)


@dataclass(frozen=True, slots=True)
class Slow:
    """What passes between two of them takes so long."""

    WORD: ClassVar = "slow"
    one: str = name("leader")
    other: str = name("others")
    latency_ms: int = number(40, 0, LATENCY_MS_MAX)
    topic: str = name("orders")
    partition: int = number(0, 0, 11)


@dataclass(frozen=True, slots=True)
class Heal:
    """Open every way again, as quick as before."""

    WORD: ClassVar = "heal"


@dataclass(frozen=True, slots=True)
class Elect:
    """Have a partition led by a replica that may lack records, because no better one is left."""

    WORD: ClassVar = "elect"
    topic: str = name("orders")
    partition: int = number(0, 0, 11)


Action: TypeAlias = (
    CreateTopic
    | SetConfig
    | AddPartitions
    | Produce
    | Transact
    | AddConsumer
    | AddShareConsumer
    | SetGroupConfig
    | StopConsumer
    | CrashConsumer
    | ResetOffsets
    | StopNode
    | StartNode
    | Cut
    | Slow
    | Heal
    | Elect
)

KINDS: Final[tuple[type[Action], ...]] = (
    CreateTopic,
    SetConfig,
    AddPartitions,
    Produce,
    Transact,
    AddConsumer,
    AddShareConsumer,
    SetGroupConfig,
    StopConsumer,
    CrashConsumer,
    ResetOffsets,
    StopNode,
    StartNode,
    Cut,
    Slow,
    Heal,
    Elect,
)
BY_WORD: Final[Mapping[str, type[Action]]] = {kind.WORD: kind for kind in KINDS}


def as_json(action: Action) -> list[Any]:
    """The action's word and its non-default fields."""
    given = {each.name: getattr(action, each.name) for each in fields(action)}
    changed = {
        each.name: list(given[each.name]) if isinstance(given[each.name], tuple) else given[each.name]
        for each in fields(action)
        if given[each.name] != each.default
    }
    return [action.WORD, changed] if changed else [action.WORD]


def from_json(given: Any) -> Action:
    """Parse an action from untrusted JSON; raises `BadAction` if it is invalid."""
    if not isinstance(given, list) or not 1 <= len(given) <= 2 or not isinstance(given[0], str):
        raise BadAction("an action is a list of its word and its fields")
    kind = BY_WORD.get(given[0])
    if kind is None:
        raise BadAction(f"there is no action {given[0][:NAME_MAX]!r}; there are {', '.join(BY_WORD)}")
    values = given[1] if len(given) == 2 else {}
    if not isinstance(values, dict):
        raise BadAction(f"{kind.WORD}: the fields must be an object")
    known = {each.name: each for each in fields(kind)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise BadAction(f"{kind.WORD} has no field {unknown[0][:NAME_MAX]!r}; it has {', '.join(known)}")
    return kind(**{key: _checked(kind.WORD, key, value, known[key].metadata) for key, value in values.items()})


def _checked(word: str, key: str, value: Any, rule: Mapping[str, Any]) -> Any:
    match rule["kind"]:
        case "name" if isinstance(value, str) and (value or rule["is_optional"]):
            if len(value) <= NAME_MAX and NAME_SIGNS.issuperset(value) and value not in (".", ".."):
                return value
            raise BadAction(f"{word}: {key} may have {NAME_MAX} letters, digits, '.', '_' and '-'")
        case "text" if isinstance(value, str):
            if len(value) <= TEXT_MAX:
                return value
            raise BadAction(f"{word}: {key} may have {TEXT_MAX} signs")
        case "number" if type(value) is int:
            if rule["lowest"] <= value <= rule["highest"]:
                return value
            raise BadAction(f"{word}: {key} must be from {rule['lowest']:,} to {rule['highest']:,}")
        case "flag" if type(value) is bool:
            return value
        case "choice" if isinstance(value, str):
            if value in rule["choices"]:
                return value
            raise BadAction(f"{word}: {key} must be one of {', '.join(rule['choices'])}")
        case "keys" if isinstance(value, list) and all(isinstance(each, str) for each in value):
            if len(value) <= KEYS_MAX and all(len(each) <= NAME_MAX for each in value):
                return tuple(value)
            raise BadAction(f"{word}: there may be {KEYS_MAX} keys of {NAME_MAX} signs each")
    raise BadAction(f"{word}: {key} is of another kind")


def describe(kind: type[Action]) -> dict[str, Any]:
    """What a page needs to offer an action: its word, meaning, and fields with bounds."""
    shown = []
    for each in fields(kind):
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        rule = {key: list(value) if isinstance(value, tuple) else value for key, value in each.metadata.items()}
        shown.append({"name": each.name, "default": default, **rule})
    return {"word": kind.WORD, "meaning": (kind.__doc__ or "").strip(), "fields": shown}


def in_words(action: Action) -> str:
    """The action as a sentence."""
    match action:
        case CreateTopic():
            least = f", min.insync.replicas={action.min_insync}" if action.min_insync > 1 else ""
            size = f"{counted(action.partitions, 'partition')} × {counted(action.replication, 'replica')}"
            return f"create topic {action.topic}: {size}{least}"
        case SetConfig():
            return f"set {action.setting}={action.value} for {action.topic}"
        case AddPartitions():
            return f"let {action.topic} have {action.partitions} partitions"
        case Produce():
            keys = ", ".join(action.keys) or "no key"
            salted = f", salted {action.salt} ways" if action.salt else ""
            pace = f", one every {action.every_ms} ms" if action.every_ms and action.count > 1 else ""
            return f"produce {action.count} to {action.topic} (acks={action.acks}; {keys}{salted}{pace})"
        case Transact():
            what = f"a transaction of {action.count} records to {action.topic}"
            return f"{what}, held {action.hold_ms} ms: {action.ending}"
        case AddConsumer():
            static = ", static" if action.is_static else ""
            habits = f"{action.protocol}{static}, commit {action.commit}"
            return f"start {action.consumer} in group {action.group} ({habits})"
        case AddShareConsumer():
            names = action.names
            who = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            renews = ", renew" if action.renews else ""
            return f"start {who} in share group {action.group} ({action.work_ms} ms a record{renews})"
        case SetGroupConfig():
            return f"set {action.setting}={action.value} for group {action.group}"
        case StopConsumer():
            return f"{action.consumer} leaves its group"
        case CrashConsumer():
            return f"kill {action.consumer}{' between its two steps' if action.between else ''}"
        case ResetOffsets():
            return f"set the offsets of {action.group} for {action.topic} to {action.offset}"
        case StopNode():
            return f"{'cut the power of' if action.power else 'kill'} {_node_words(action.node, action)}"
        case StartNode():
            words = {"all": "every node that is down", "first": "the node that went down first"}
            return f"start {words.get(action.node, f'node {action.node}')}"
        case Cut():
            way = "from" if action.one_way else "between"
            and_ = "to" if action.one_way else "and"
            return f"cut the network {way} {_node_words(action.one, action)} {and_} {action.other}"
        case Slow():
            where = f"{_node_words(action.one, action)} and {action.other}"
            return f"the way between {where} takes {action.latency_ms} ms"
        case Heal():
            return "heal the network"
        case Elect():
            return f"elect a leader of {action.topic}-{action.partition} that may lack records"


def _node_words(node: str, action: StopNode | Cut | Slow) -> str:
    match node:
        case "leader" | "follower":
            return f"the {node} of {action.topic}-{action.partition}"
        case "controller":
            return "the controller"
        case _ if node.isdigit():
            return f"node {node}"
    return node
