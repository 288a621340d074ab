"""Every version of every message that kafka-python knows: the same bytes and the same values, both ways."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import struct
import warnings
from typing import Any

import pytest
from tests.wire.conftest import is_private

from millpond.wire import messages, notation
from millpond.wire.header import NAMES

ROUNDS = 4
ONLY_KIO_KNOWS = {
    *range(38, 42),
    52,
    53,
    54,
    56,
    58,
    59,
    62,
    63,
    64,
    67,
    68,
    69,
    70,
    71,
    72,
    *range(76, 88),
    90,
    91,
    92,
}


def kafka_python_classes() -> dict[str, Any]:
    """Their classes by name (with two abstract ones); those of the older protocol layer are left out."""
    found = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in module.name or "generate" in module.name:
            continue
        classes = dict(inspect.getmembers(importlib.import_module(module.name), inspect.isclass))
        found.update({name: each for name, each in classes.items() if issubclass(each, ApiMessage | ApiData)})
    return found


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # They read their schemas in a way that Python gives up.
    import kafka.protocol
    from kafka.protocol.api_data import ApiData
    from kafka.protocol.api_message import ApiMessage

    THEIRS = kafka_python_classes()
NEWER_THAN_KAFKA_PYTHON = {
    ("ApiVersionsRequest", 5),
    ("ApiVersionsResponse", 5),
    ("DeleteGroupsRequest", 3),
    ("DeleteGroupsResponse", 3),
    ("TxnOffsetCommitRequest", 6),
    ("TxnOffsetCommitResponse", 6),
}
"""Versions of Kafka 4.4. `test_kafka_4_4.py` compares them with bytes of another client."""
SHARED = sorted(THEIRS.keys() & set(messages.names()))


def check_struct(value: Any, theirs: Any, declared: notation.Struct, version: int) -> None:
    """Field by field. They turn sets of operations into Python sets, the zero uuid and absent tagged fields into
    None; the bytes, compared apart, speak for these."""
    for field in declared.fields:
        if not field.versions.has(version) or is_private(field) or field.name.endswith("_operations"):
            continue
        ours, other = getattr(value, field.name), getattr(theirs, field.name)
        if other is None and (field.type == "uuid" or field.tag is not None):
            continue
        if field.struct is None or ours is None:
            assert ours == other, f"{declared.name}.{field.name}"
        elif field.is_array:
            for one, another in zip(ours, other, strict=True):
                check_struct(one, another, field.struct, version)
        else:
            check_struct(ours, other, field.struct, version)


@pytest.mark.parametrize("name", SHARED)
def test_same_bytes_and_values_as_kafka_python(name: str, random_messages: Any) -> None:
    cls, other = getattr(messages, name), THEIRS[name]
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
        if (name, version) in NEWER_THAN_KAFKA_PYTHON:
            continue
        # Their embedded consumer protocol carries its version in front; ours leaves that to the caller.
        prefix = b"" if issubclass(other, ApiMessage) else struct.pack(">h", version)
        for number in range(ROUNDS):
            seed = f"{name} {version} {number}"
            value = random_messages(seed, with_private=False).message(cls, version)
            if name == "ApiVersionsResponse":
                value.error_code = 0  # They read a refused ApiVersions as version 0, whatever version was asked.
            data = value.encode(version)
            theirs = other.decode(prefix + data, version=version)
            check_struct(value, theirs, cls._schema.root, version)
            theirs._header = None
            assert bytes(theirs.encode(version=version)) == prefix + data, seed


def test_the_oracle_covers_what_it_should() -> None:
    """kafka-python is a client: it lacks what only brokers say to each other, the newer group protocols and all
    records; kio covers the requests and responses among those."""
    assert len(SHARED) == 106
    assert {key for key in NAMES if f"{NAMES[key]}Request" not in SHARED} == ONLY_KIO_KNOWS
    assert {key for key in NAMES if f"{NAMES[key]}Response" not in SHARED} == ONLY_KIO_KNOWS
