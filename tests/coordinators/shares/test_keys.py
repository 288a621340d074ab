from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.shares.keys import SharePartition, key_of, parse_coordinator_key

TOPIC = UUID("c9e6cf74-9a1e-4f2b-b3a0-0ff1ce5eab1e")
KEYS = st.builds(SharePartition, st.text(min_size=1, max_size=20), st.uuids(), st.integers(0, (1 << 31) - 1))


def java_hash(text: str) -> int:
    """Java's `String.hashCode` as its documentation has it, for text without characters beyond 16 bits."""
    total = sum(ord(each) * 31 ** (len(text) - 1 - index) for index, each in enumerate(text))
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)


def test_a_key_has_kafkas_notation() -> None:
    assert SharePartition("jobs", TOPIC, 3).coordinator_key == "jobs:yebPdJoeTyuzoA_xzl6rHg:3"
    assert SharePartition("a:b", UUID(int=1), 0).coordinator_key == "a:b:AAAAAAAAAAAAAAAAAAAAAQ:0"


def test_a_key_is_read_from_its_end() -> None:
    assert parse_coordinator_key("a:b:AAAAAAAAAAAAAAAAAAAAAQ:0") == SharePartition("a:b", UUID(int=1), 0)


@given(KEYS)
def test_a_key_is_read_back_as_it_was(key: SharePartition) -> None:
    assert parse_coordinator_key(key.coordinator_key) == key


@given(KEYS, st.sampled_from([1, 7, 50]))
def test_the_hash_is_that_of_the_key(key: SharePartition, partitions: int) -> None:
    if all(ord(each) < 1 << 16 for each in key.group_id):
        expected = java_hash(key.coordinator_key)
        assert key_of(key, partitions) == (0 if expected == -(1 << 31) else abs(expected)) % partitions


@pytest.mark.parametrize(
    "key",
    [
        "", "g", "g:0", ":AAAAAAAAAAAAAAAAAAAAAQ:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:", "g:AAAAAAAAAAAAAAAAAAAAAQ:-1",
        "g:AAAAAAAAAAAAAAAAAAAAAQ:00", "g:AAAAAAAAAAAAAAAAAAAAAQ:2147483648", "g:AAAAAAAAAAAAAAAAAAAAAR:0",
        "g:AAAA:0", "g:not base64 at all!!!!:0", "g:AAAAAAAAAAAAAAAAAAAAAQ==:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:²",
    ],
)  # fmt: skip
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_coordinator_key(key)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
