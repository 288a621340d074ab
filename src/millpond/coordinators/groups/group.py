"""What all kinds of groups have in common, and what the parts of a shard share while they decide a step."""

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
"""The protocol type of groups whose members share partitions; other types assign something else."""


class Group(Protocol):
    """A group as offsets and the list of groups see it. A failed check is a `Refused`."""

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
        """The memory that it takes, without its offsets."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        """Check that this member, in this generation or epoch, may commit offsets."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that it may read them."""
        ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribed_among(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics among these that its members subscribe to. This may scan all subscriptions: ask for many at
        once."""
        ...

    def retained_since_ms(self, committed: Committed) -> int | None:
        """When the retention time of an offset starts; None while it does not."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The tombstones for the group, without its offsets."""
        ...


@dataclass(slots=True)
class Shared:
    """What all groups of a shard use."""

    image: Image
    settings: GroupSettings
    entropy: Entropy
    memory: GroupMemory = field(default_factory=GroupMemory)
    patterns: PatternTopics = field(init=False)
    timers: Timers = field(default_factory=Timers)
    wall_ahead_ms: int = 0
    """The wall clock minus coordinator time; only timestamps for others use the wall clock."""
    finished: list[tuple[str, Rebalance]] = field(default_factory=list)
    """Finished rebalances with their group ids, until they are taken."""

    def __post_init__(self) -> None:
        self.patterns = PatternTopics(self.image)


@dataclass(slots=True)
class GroupStep:
    """One step: its time, its context, and what has been decided so far."""

    shared: Shared
    now_ms: int
    effects: Effects = field(default_factory=Effects)

    @property
    def settings(self) -> GroupSettings:
        return self.shared.settings

    @property
    def wall_ms(self) -> int:
        """For timestamps; never for durations."""
        return self.now_ms + self.shared.wall_ahead_ms

    @property
    def timers(self) -> Timers:
        return self.shared.timers

    def reply(self, reply_to: Any, response: Any) -> None:
        self.effects.reply(reply_to, response)

    def record(self, *records: CoordinatorRecord) -> None:
        self.effects.records.extend(records)
