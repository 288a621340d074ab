"""From options to the columns that parsing adds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")

from millpond.spark.options import OptionError, Options, read_options
from millpond.spark.parsing.fields import parsed_fields, parser_of


def options(**given: str) -> Options:
    return read_options({"subscribe": "orders", **given}, "read")


def columns(**given: str) -> list[str]:
    return [f"{each.name} {each.dataType.simpleString()}" for each in parsed_fields(options(**given))]


def test_columns() -> None:
    assert columns() == []
    assert columns(valueFormat="json", valueSchema="id long") == ["parsed struct<id:bigint>"]
    assert columns(valueFormat="json", valueSchema="id long", badRecords="dead_letters") == [
        "parsed struct<id:bigint>"
    ]
    assert columns(valueFormat="json", valueSchema="id long", badRecords="null") == [
        "parsed struct<id:bigint>",
        "fault string",
    ]


def test_a_file_and_a_prefix(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    file = tmp_path / "orders.avsc"
    file.write_text('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "boolean"}]}')
    given = {"valueFormat": "avro", "valueSchema": str(file)}
    assert columns(**given) == ["parsed struct<a:boolean>"]
    bare, prefixed = (parser_of(options(**given, avroPrefix=each)) for each in ("none", "confluent"))
    import pyarrow as pa

    values = pa.array([b"\1", b"\0\0\0\0\0\1"], pa.binary())
    assert [row for row, _ in bare.parse(values).faults] == [1]
    assert [row for row, _ in prefixed.parse(values).faults] == [0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "valueFormat=json needs the option valueSchema"),
        ({"valueSchema": "id lnog"}, "option valueSchema: 'lnog' at character 4"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        parsed_fields(options(valueFormat="json", **given))


def test_one_parser_for_many_tasks() -> None:
    given = {"valueFormat": "json", "valueSchema": "id long"}
    assert parser_of(options(**given)) is parser_of(options(**given))
