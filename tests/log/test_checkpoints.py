from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.ids import TopicPartition
from millpond.log.checkpoints import (
    DamagedCheckpoint,
    decode_epochs,
    decode_lines,
    decode_metadata,
    encode_epochs,
    encode_metadata,
    encode_offsets,
    read_offsets,
)
from millpond.sim.world.disk import SimDisk


def test_the_text_is_kafkas_own():
    disk = SimDisk()
    offsets = {TopicPartition("orders", 3): 512_000, TopicPartition("a-b", 0): 0}
    disk.replace("/recovery-point-offset-checkpoint", encode_offsets(offsets))
    assert disk.read("/recovery-point-offset-checkpoint") == b"0\n2\na-b 0 0\norders 3 512000\n"
    assert read_offsets(disk, "/recovery-point-offset-checkpoint") == offsets


def test_a_missing_checkpoint_is_an_empty_one():
    assert read_offsets(SimDisk(), "/none") == {}


@pytest.mark.parametrize(
    "data", [b"", b"0\n", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\nx\n", b"\xff\xfe", b"0\n1\na 0 1 1\n"]
)
def test_damage_is_reported(data):
    with pytest.raises(DamagedCheckpoint):
        decode_lines(data, 3)


def test_a_word_that_is_no_number_is_damage():
    disk = SimDisk()
    disk.replace("/x", b"0\n1\na 0 many\n")
    with pytest.raises(DamagedCheckpoint):
        read_offsets(disk, "/x")
    with pytest.raises(DamagedCheckpoint):
        decode_epochs(b"0\n1\n1 many\n")


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_epochs_come_back(entries):
    assert decode_epochs(encode_epochs(entries)) == entries


@given(st.uuids())
def test_topic_ids_come_back(topic_id):
    assert decode_metadata(encode_metadata(topic_id)) == topic_id


def test_the_topic_id_is_written_as_kafka_writes_it():
    text = encode_metadata(UUID(bytes=bytes(range(16))))
    assert text == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    "data", [b"", b"version: 0\n", b"version: 9\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: AA"]
)
def test_damaged_metadata_is_reported(data):
    with pytest.raises(DamagedCheckpoint):
        decode_metadata(data)
