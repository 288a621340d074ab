"""Locations of tables: paths, URLs, and removing files that may not exist."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.spark.lake.location import Location


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/lake/orders/", "/lake/orders"),
        ("file:///lake/my%20orders", "/lake/my orders"),
        ("file:/lake/orders", "/lake/orders"),
        ("s3://bucket/orders/", "s3://bucket/orders"),
    ],
)
def test_a_location_has_one_spelling(path: str, uri: str) -> None:
    assert Location.of(path).uri == uri


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Location.of("orders").uri == str(tmp_path / "orders")


def test_a_missing_table_is_none(tmp_path: Path) -> None:
    assert Location.of(str(tmp_path / "nothing")).table() is None


def test_local_folders_and_object_stores_have_the_same_files(tmp_path: Path) -> None:
    """The code path of object stores, on a folder."""
    local = Location.of(str(tmp_path))
    store = Location(f"file://{tmp_path}")
    assert not store.is_local
    local.make_folder("a=1")
    rows = pa.table({"raw": [bytes([n % 251]) * 100 for n in range(20_000)]})
    for location, path in ((local, "a=1/x"), (store, "b=2/y")):
        with location.files().open_output_stream(path) as sink:
            pq.write_table(rows, sink, use_dictionary=False, compression="none")
    assert pq.read_table(store.files().open_input_file("a=1/x")) == rows
    assert pq.ParquetFile(tmp_path / "b=2" / "y").read() == rows
    for location in (local, store):
        location.remove(["a=1/x", "a=1/x", "never/was"])
        location.remove_folder("b=2")
        location.remove_folder("never")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
