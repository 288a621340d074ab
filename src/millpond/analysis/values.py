"""The form of a topic's values: given by the user, or found in a sample."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from millpond.columns import types
from millpond.columns.inference import infer
from millpond.columns.parser import Parser
from millpond.columns.sample import sample_values
from millpond.columns.schemas import ENDINGS, inline_schema, read_json, read_schema
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ConfigError
from millpond.remote.offsets import Isolation

FORMS: Final = ("bytes", "text", "json", "avro")
Format = Literal["bytes", "text", "json", "avro"]
KEPT_JSON_MIN: Final = 0.5
"""Values are JSON if at least this part of a sample is JSON objects; others are then bad values."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    format: Format
    fields: types.StructType | None = None
    """The columns of parsed values."""
    schema: str = ""
    """The text of an Avro schema."""
    prefixed: bool = False
    """Avro values have a schema registry's prefix."""

    @property
    def names(self) -> list[str]:
        return self.fields.names if self.fields is not None else []

    def parser(self, only: Collection[str]) -> Parser:
        assert self.fields is not None
        if self.format == "avro":
            return Parser("avro", self.schema, prefixed=self.prefixed)
        return Parser("json", self.fields, only=only)


BYTES: Final = ValueForm("bytes")
TEXT: Final = ValueForm("text")


def find_form(
    cluster: Cluster, topics: Iterable[str], value: str | None, schema: str | None, isolation: Isolation
) -> ValueForm:
    """The form that `value` and `schema` ask for; JSON without a schema is sampled."""
    if value is not None and value not in FORMS:
        if schema is not None:
            raise ConfigError(f"value={value!r:.60} is none of {', '.join(FORMS)}, next to a schema")
        if not looks_like_schema(value):
            raise ConfigError(
                f'value={value!r} is none of {", ".join(FORMS)}, nor a schema such as "id long, at timestamp"'
            )
        value, schema = None, value
    if schema is not None:
        return _by_schema(cluster, topics, value, schema, isolation)
    match value:
        case None | "bytes":
            return BYTES
        case "text":
            return TEXT
        case "json":
            return _sampled_json(sample(cluster, topics, isolation), ", ".join(topics))
    raise ConfigError('value="avro" needs schema=, an Avro schema as text or the file that has it')


def looks_like_schema(text: str) -> bool:
    return " " in text.strip() or text.lstrip().startswith("{") or text.strip().lower().endswith(ENDINGS)


def guessed_form(values: Iterable[bytes | None]) -> ValueForm:
    """JSON, text or bytes, as sampled values suggest."""
    there = [each for each in values if each is not None]
    inferred = infer(there)
    if inferred.columns and inferred.records - inferred.strangers >= KEPT_JSON_MIN * inferred.records:
        return _json_of([str(each) for each in inferred.columns])
    return TEXT if all(map(is_text, there)) else BYTES


def is_text(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def sample(cluster: Cluster, topics: Iterable[str], isolation: Isolation) -> list[bytes | None]:
    return [value for topic in topics for value in sample_values(cluster, topic, isolation)]


def _sampled_json(values: list[bytes | None], topics: str) -> ValueForm:
    inferred = infer(values)
    if inferred.records and inferred.strangers == inferred.records:
        hint = (
            'they have a schema registry\'s prefix: give their Avro schema with schema="orders.avsc"'
            if inferred.prefixed
            else 'read them with value="text" or "bytes"'
        )
        raise ConfigError(f"none of the {inferred.records:,} sampled values of {topics} is a JSON object; {hint}")
    return _json_of([str(each) for each in inferred.columns])


def _json_of(columns: list[str]) -> ValueForm:
    if not columns:
        return ValueForm("json", types.StructType([]))
    fields = read_schema(", ".join(columns))
    # What every sampled record has, another may still lack.
    return ValueForm("json", types.StructType([types.StructField(each.name, each.type) for each in fields]))


def _by_schema(
    cluster: Cluster, topics: Iterable[str], value: str | None, schema: str, isolation: Isolation
) -> ValueForm:
    text = inline_schema(schema)
    is_avro = text.lstrip().startswith("{") and read_json(text).get("type") == "record"
    if value in ("bytes", "text") or (value == "avro" and not is_avro):
        raise ConfigError(
            f"value={value!r} does not go with this schema"
            + ("" if value != "avro" else ": Avro values are read by an Avro schema (JSON, or a file *.avsc)")
        )
    if not is_avro:
        return ValueForm("json", read_schema(text))
    if value == "json":
        return ValueForm("json", read_schema(text))
    bare = Parser("avro", text)
    values = pa.array(sample(cluster, topics, isolation), pa.binary())
    bad = len(bare.parse(values).faults)
    prefixed = bool(bad) and len(Parser("avro", text, prefixed=True).parse(values).faults) < bad
    return ValueForm("avro", bare.type, text, prefixed)
