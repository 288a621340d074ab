"""The columns that parsing adds, from the options."""

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


def test_the_columns_follow_the_options() -> None:
    assert columns() == []
    assert columns(valueFormat="json", valueSchema="id long") == ["parsed struct<id:bigint>"]
    assert columns(valueFormat="json", valueSchema="id long", badRecords="dead_letters") == [
        "parsed struct<id:bigint>"
    ]
    assert columns(valueFormat="json", valueSchema="id long", badRecords="null") == [
        "parsed struct<id:bigint>",
        "fault string",
    ]


def test_a_schema_file_and_a_registry_prefix(tmp_path: Path) -> None:
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
    ("given", "message"),
    [
        ({}, "valueFormat=json needs the option valueSchema"),
        ({"valueSchema": "id lnog"}, "option valueSchema: character 4: expected a type"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parsed_fields(options(valueFormat="json", **given))


def test_one_parser_for_many_tasks() -> None:
    given = {"valueFormat": "json", "valueSchema": "id long"}
    assert parser_of(options(**given)) is parser_of(options(**given))
