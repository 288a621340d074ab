"""What every kind of group has in common, and what the parts of a shard share while they decide a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from millpond.base.ports import Entropy
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.history import History, Rebalance
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.groups.timers import Timers
from millpond.coordinators.shard import CoordinatorRecord, Effects
from millpond.metadata.image import Image

if TYPE_CHECKING:
    from millpond.coordinators.groups.offsets import Committed

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members share out partitions; other types share out something of their own."""


class Group(Protocol):
    """A group as offsets and the list of groups see it. A check that does not hold is a `Refused`."""

    @property
    def group_id(self) -> str: ...

    @property
    def type_name(self) -> str:
        """`classic` or `consumer`."""
        ...

    @property
    def state_name(self) -> str: ...

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def history(self) -> History: ...

    @property
    def member_count(self) -> int: ...

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes, its offsets left aside."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        """May this member, in this generation or epoch, commit offsets?"""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """May it read them?"""
        ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribed_among(self, topics: Iterable[str]) -> frozenset[str]:
        """Those of these topics that its members read. All that they name may be looked at: ask for many at once."""
        ...

    def retained_since_ms(self, committed: Committed) -> int | None:
        """From when on the retention time of an offset runs; None while it does not."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that make the log forget the group, its offsets left aside."""
        ...


@dataclass(slots=True)
class Shared:
    """What all groups of a shard stand on."""

    image: Image
    settings: GroupSettings
    entropy: Entropy
    memory: GroupMemory = field(default_factory=GroupMemory)
    patterns: PatternTopics = field(init=False)
    timers: Timers = field(default_factory=Timers)
    wall_ahead_ms: int = 0
    """The wall clock less the coordinator's time; only stamps that others read go by the wall clock."""
    finished: list[tuple[str, Rebalance]] = field(default_factory=list)
    """Rebalances that are over, with their group's id, until somebody takes them."""

    def __post_init__(self) -> None:
        self.patterns = PatternTopics(self.image)


@dataclass(slots=True)
class Turn:
    """One step in the making: when it happens, on what ground, and what has been decided so far."""

    shared: Shared
    now_ms: int
    effects: Effects = field(default_factory=Effects)

    @property
    def settings(self) -> GroupSettings:
        return self.shared.settings

    @property
    def wall_ms(self) -> int:
        """For stamps; never for how long something lasts."""
        return self.now_ms + self.shared.wall_ahead_ms

    @property
    def timers(self) -> Timers:
        return self.shared.timers

    def reply(self, token: Any, response: Any) -> None:
        self.effects.reply(token, response)

    def record(self, *records: CoordinatorRecord) -> None:
        self.effects.records.extend(records)
