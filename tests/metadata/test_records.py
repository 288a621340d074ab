from dataclasses import FrozenInstanceError
from typing import get_args
from uuid import UUID

import pytest

from millpond.metadata.records import Record, ResourceType, TopicRecord


def test_records_are_values() -> None:
    record = TopicRecord("a", UUID(int=1))
    assert record == TopicRecord("a", UUID(int=1))
    assert hash(record) == hash(TopicRecord("a", UUID(int=1)))
    with pytest.raises(FrozenInstanceError):
        record.name = "b"  # type: ignore[misc]


def test_every_kind_is_named_as_the_protocol_names_it() -> None:
    assert all(kind.__name__.endswith("Record") for kind in get_args(Record))


def test_resource_types_have_the_numbers_of_the_protocol() -> None:
    assert {kind.name: kind.value for kind in ResourceType} == {
        "TOPIC": 2,
        "BROKER": 4,
        "BROKER_LOGGER": 8,
        "CLIENT_METRICS": 16,
        "GROUP": 32,
    }
