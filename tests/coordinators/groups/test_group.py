"""Both kinds of group can stand where a group is asked for."""

import pytest

from millpond.coordinators.groups.classic import ClassicGroup
from millpond.coordinators.groups.consumer.group import ConsumerGroup
from millpond.coordinators.groups.group import Group, GroupStep, Shared
from millpond.coordinators.groups.settings import GroupSettings
from millpond.coordinators.shard import CoordinatorRecord, Effects
from millpond.wire.messages import HeartbeatResponse


def test_every_kind_has_what_a_group_has(coordinator) -> None:
    wanted = {name for name in vars(Group) if not name.startswith("_")}
    assert len(wanted) > 10
    for group in (ClassicGroup("g"), coordinator.shard.registry.new_consumer("g")):
        assert isinstance(group, ClassicGroup | ConsumerGroup)
        assert {name for name in wanted if not hasattr(group, name)} == set()


def test_turn_gathers_what_was_decided(coordinator) -> None:
    step = GroupStep(Shared(coordinator.image, GroupSettings(), coordinator.entropy), 5)
    step.record(CoordinatorRecord(b"a", b"1"), CoordinatorRecord(b"b", None))
    step.reply("a client", HeartbeatResponse())
    expected = Effects()
    expected.records += [CoordinatorRecord(b"a", b"1"), CoordinatorRecord(b"b", None)]
    expected.reply("a client", HeartbeatResponse())
    assert step.effects == expected


def test_settings_cannot_change_under_a_shard() -> None:
    settings = GroupSettings()
    with pytest.raises(AttributeError):
        settings.group_size_max = 1  # type: ignore[misc]
    assert settings.consumer.session_timeout_ms == 45_000
