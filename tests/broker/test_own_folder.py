"""The identity of a data folder on disk, and what becomes of it in a copy."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from millpond.broker.data_folder.identity import COPIED_FROM_MAX, Identity, read_identity, write_identity
from millpond.broker.data_folder.restored import mark_restored
from millpond.metadata.partition import METADATA_PARTITION
from millpond.sim.world.disk import SimDisk

FOLDER = "/pond"
ORIGINAL = Identity(3, UUID(int=1), "mill", mark="7", contacts=("1@host:9092",))


def disk_with(identity: Identity) -> SimDisk:
    disk = SimDisk()
    disk.make_folder(f"{FOLDER}/{METADATA_PARTITION.folder}")
    write_identity(disk, FOLDER, identity)
    return disk


def test_a_copy_remembers_the_directory_ids_it_had() -> None:
    copy = ORIGINAL.as_copy(UUID(int=2)).as_copy(UUID(int=3))
    assert (copy.directory_id, copy.copied_from) == (UUID(int=3), (UUID(int=1), UUID(int=2)))
    assert read_identity(disk_with(copy), FOLDER) == copy
    assert read_identity(disk_with(ORIGINAL), FOLDER) == ORIGINAL


def test_a_folder_copied_again_and_again_remembers_the_latest_ids() -> None:
    copy = ORIGINAL
    for number in range(2, 20):
        copy = copy.as_copy(UUID(int=number))
    assert copy.copied_from == tuple(UUID(int=number) for number in range(19 - COPIED_FROM_MAX, 19))


def test_a_restored_folder_has_another_directory_id_whatever_the_file_system_says() -> None:
    disk = disk_with(replace(ORIGINAL, mark=None))
    mark_restored(disk, FOLDER, UUID(int=2))
    restored = read_identity(disk, FOLDER)
    assert restored is not None
    assert (restored.directory_id, restored.copied_from) == (UUID(int=2), (UUID(int=1),))
