"""A change of `min.insync.replicas` clears the ELRs of all partitions: slice by slice, and before the setting."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata import configs
from millpond.metadata.configs import ConfigChange, ResourceChanges, decide_incremental_alter, first_slice
from millpond.metadata.image import ALL_BROKERS, Image, Resource
from millpond.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)

LAYERS = NodeLayers(node_settings({}))
NAME = "min.insync.replicas"
THREE = (1, 2, 3)


def cluster(partitions: int) -> Image:
    """Two topics with as many partitions; in each, broker 2 is eligible."""
    image = Image()
    for broker in THREE:
        image.replay(RegisterBrokerRecord(broker, UUID(int=broker), 100 + broker, (), fenced=broker != 1))
    for number, name in enumerate("ab"):
        image.replay(TopicRecord(name, UUID(int=number)))
        for index in range(partitions):
            image.replay(
                PartitionRecord(index, UUID(int=number), THREE, (1,), leader=1, eligible_leader_replicas=(2,))
            )
    return image


def slices(image: Image, *resources: Resource) -> list[int]:
    """How many ELRs each slice clears. Checks that only the last one changes the settings."""
    wanted = [ResourceChanges(each, (ConfigChange(NAME, 0, "1"),)) for each in resources]
    sizes = []
    while True:
        decision = first_slice(decide_incremental_alter(image, LAYERS, wanted))
        settings = [each for each in decision.records if isinstance(each, ConfigRecord)]
        cleared = [each for each in decision.records if isinstance(each, PartitionChangeRecord)]
        assert len(settings) + len(cleared) == len(decision.records)
        sizes.append(len(cleared))
        for record in decision.records:
            image.replay(record)
        if decision.reply is not None:
            assert len(settings) == len(resources)
            assert not any(each.elr for topic in image.topics.values() for each in topic.partitions)
            return sizes
        assert not settings


@pytest.mark.parametrize(
    ("partitions", "sizes"), [(1, [2]), (2, [4]), (3, [4, 2]), (4, [4, 4]), (5, [4, 4, 2]), (9, [4, 4, 4, 4, 2])]
)
def test_no_slice_is_larger_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, partitions: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(configs, "SLICE", 4)
    assert slices(cluster(partitions), ALL_BROKERS) == sizes


def test_several_resources_change_in_the_same_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "SLICE", 4)
    topics = [Resource(ResourceType.TOPIC, name) for name in "ab"]
    assert slices(cluster(5), *topics) == [4, 4, 2]


def test_a_dry_run_needs_no_slices() -> None:
    wanted = [ResourceChanges(ALL_BROKERS, (ConfigChange(NAME, 0, "1"),))]
    decision = first_slice(decide_incremental_alter(cluster(300), LAYERS, wanted, validate_only=True))
    assert decision.records == ()
    assert decision.reply is not None
