"""Options of Delta tables: case, nearest names, and invalid combinations."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.spark.lake.errors import LakeOptionError
from millpond.spark.lake.location import Location
from millpond.spark.lake.options import READ, WRITE, read_options, write_options

DOCS = Path(__file__).parents[3] / "docs" / "lake.md"


def test_names_are_case_insensitive_and_storage_options_pass_through() -> None:
    options = write_options(
        {
            "PATH": "/lake/orders",
            "MODE": "upsert",
            "keys": "id, shop",
            "orderby": "offset",
            "targetfilebytes": "1000000",
            "storage.aws_region": "eu-central-1",
            "checkpointLocation": "/somewhere",
        }
    )
    assert options.location == Location("/lake/orders", (("aws_region", "eu-central-1"),))
    assert (options.is_upsert, options.keys, options.order_by) == (True, ("id", "shop"), ("offset",))
    assert options.target_file_bytes == 1_000_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "t", "compactEverry": "3"}, "did you mean compactEvery"),
        ({"path": "t", "versionAsOf": "3"}, "it is for reading"),
        ({"mode": "append"}, "no table given"),
        ({"path": "t", "mode": "merge"}, "append, upsert"),
        ({"path": "t", "mode": "upsert"}, 'option("keys"'),
        ({"path": "t", "keys": "id"}, "upsert"),
        ({"path": "t", "mode": "upsert", "keys": "id", "ignoreLate": "true"}, "orderBy"),
        ({"path": "t", "mode": "upsert", "keys": "id", "deleteWhen": "id"}, "separate column"),
        ({"path": "t", "vacuumHours": "200"}, "compactEvery"),
        ({"path": "t", "vacuumHours": "1", "compactEvery": "1"}, "vacuumShort"),
        ({"path": "t", "targetFileBytes": "10"}, "at least"),
        ({"path": "t", "txnAppId": "me"}, "belong together"),
        ({"path": "t", "txnAppId": "me", "txnVersion": "1", "ofStream": "true"}, "leave txnAppId"),
    ],
)
def test_invalid_options_are_refused_with_advice(given: dict[str, str], message: str) -> None:
    with pytest.raises(LakeOptionError, match=message.replace("(", r"\(")):
        write_options(given)


def test_upserts_have_smaller_files() -> None:
    upsert = {"path": "t", "mode": "upsert", "keys": "id"}
    assert write_options({"path": "t"}).target_file_bytes == 128 << 20
    assert write_options(upsert).target_file_bytes == 16 << 20
    assert write_options({**upsert, "targetFileBytes": str(128 << 20)}).target_file_bytes == 128 << 20


def test_reading_takes_one_version() -> None:
    assert read_options({"path": "/t", "versionAsOf": "0"}).version == 0
    with pytest.raises(LakeOptionError, match="only one"):
        read_options({"path": "/t", "versionAsOf": "1", "timestampAsOf": "2026-01-01T00:00:00Z"})
    with pytest.raises(LakeOptionError, match="for writing"):
        read_options({"path": "/t", "partitionBy": "day"})


def test_every_option_is_in_the_docs() -> None:
    text = DOCS.read_text()
    assert [setting.name for setting in (*READ, *WRITE) if f"| `{setting.name}` |" not in text] == []
