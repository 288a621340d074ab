from __future__ import annotations

from uuid import UUID

from millpond.base.ids import TopicPartition
from millpond.log.names import former_folder_name, offset_name, read_offset_name, read_partition_folder


def test_offsets_are_padded_to_twenty_digits():
    assert offset_name(512_000, ".log") == "00000000000000512000.log"
    assert read_offset_name("00000000000000512000.log") == (512_000, ".log")
    for stranger in (
        "512000.log",
        "00000000000000512000",
        "leader-epoch-checkpoint",
        "00000000000000512000.log.swap",
    ):
        assert read_offset_name(stranger) is None


def test_a_topic_name_may_hold_dashes():
    assert read_partition_folder("my-topic-12") == TopicPartition("my-topic", 12)
    for stranger in ("my-topic", "-1", "notes", "a-1x"):
        assert read_partition_folder(stranger) is None


def test_a_deleted_folder_fits_a_file_name_and_is_no_partition():
    for topic in ("a", "t" * 249):
        name = former_folder_name(TopicPartition(topic, 7), UUID(int=1), "-delete")
        assert len(name) <= 255
        assert name.endswith(f"{1:032x}-delete")
        assert read_partition_folder(name) is None
