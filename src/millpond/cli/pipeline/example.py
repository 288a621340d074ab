"""The commented example that `millpond pipeline init` writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millpond.base.names import nearest
from millpond.base.secret_names import is_secret
from millpond.cli.pipeline.file import Wrong
from millpond.spark.pipelines.kinds import KINDS

if TYPE_CHECKING:
    from millpond.columns.inference import Inferred

HEAD: Final = """\
# A pipeline: topics in, tables and topics out. Run it with
#   millpond pipeline run {name}.toml
# Relative paths begin where this file is. ${{NAME}} is taken from the environment, ${{NAME:-otherwise}} too.

name = "{name}"
# checkpoint = ".millpond/pipelines/{name}"   # its state: positions, counts of windows; keep it
trigger = "continuous"                         # or "10 seconds", or "available_now" to take what is there and end

[source]
bootstrap = {bootstrap}
topic = "{topic}"                               # or ["a", "b"], or pattern = "orders-.*"
start = "earliest"                             # of the first run: "earliest", "latest", "2026-01-31T08:30:00Z"
# group = "{name}"                             # show its lag as a group's: millpond group describe {name}
{options}

{parse}
# Spark SQL between source and jobs. `input` is the step before. Beside the parsed columns there are
# _key, _value, _topic, _partition, _offset, _timestamp and _headers.
# [[transform]]
# sql = "select *, total > 1000 as is_large from input"

# [spark]
# master = "local[*]"
# conf = {{ "spark.driver.memory" = "2g" }}
"""


PARSE: Final = """\
[parse]
format = "json"                                # or "avro", or "raw" for the bytes as they are
{schema}
bad_records = "dead_letters"                   # or "fail", or "null": the row stays, with the reason in _fault
# dead_letters = "{topic}.bad.dlq"
"""

RAW: Final = """\
[parse]
format = "raw"                                 # or "json" or "avro", with a schema
# {why}
"""

OPTIONS: Final = "# options = { maxOffsetsPerTrigger = 100000 }  # any option of the source"
NAME_LENGTH_MAX: Final = 200
SCHEMA: Final = 'schema = "id long, customer string, region string, at timestamp, total double"'
COLUMNS: Final = {"at": ("timestamp",), "total": ("double", "long"), "region": ("string",), "customer": ("string",)}
"""Columns of the kinds' examples, and the types that may replace them."""

GROUPS: Final = ("region",)
_IDENTIFIER: Final = re.compile(r"(.*_)?(id|uuid|guid|key)|.*Id", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a TOML string must escape."""


def example(
    name: str,
    topic: str,
    kinds: Sequence[str],
    bootstrap: str = "127.0.0.1:9092",
    sample: Inferred | None = None,
    settings: Mapping[str, str] | None = None,
    client_file: str | None = None,
) -> str:
    """A declaration with a job of each requested kind, for the sampled values. `settings` are the client settings;
    secrets become environment variables. `client_file`, if given, is used instead."""
    word = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-_")[:NAME_LENGTH_MAX] or "pipeline"
    for each in kinds:
        if each not in KINDS:
            raise Wrong(f"There is no kind {each}{nearest(each, KINDS)} The kinds are {', '.join(KINDS)}.")
    first = list(kinds) or [next(iter(KINDS))]
    head = HEAD.format(
        name=word,
        topic=topic,
        bootstrap=_text(f"${{MILLPOND_BOOTSTRAP:-{bootstrap}}}"),
        options=_options(settings or {}, client_file),
        parse=_parse(topic, sample),
    )
    parts = [head]
    parts += [f"# {KINDS[each].doc}\n{_fitting(KINDS[each].example.strip(), topic, sample)}\n" for each in first]
    others = [kind for kind in KINDS.values() if kind.name not in first]
    if others:
        width = max(len(kind.name) for kind in others) + 2
        lines = (f"#   {'[' + kind.name + ']':<{width}}  {kind.doc}" for kind in others)
        parts.append(
            "# Further kinds of jobs, each with `millpond pipeline init --kind KIND`:\n" + "\n".join(lines) + "\n"
        )
    return "\n".join(parts)


def is_raw(sample: Inferred) -> bool:
    """Most values are not JSON objects."""
    return sample.strangers * 2 > sample.records or not sample.columns


def _parse(topic: str, sample: Inferred | None) -> str:
    if sample is None or not sample.records:
        return PARSE.format(schema=SCHEMA, topic=topic)
    if is_raw(sample):
        why = f"{sample.strangers:,} of {sample.records:,} values are not JSON objects."
        if sample.prefixed:
            why += (
                f" {sample.prefixed:,} have the prefix of a schema registry: use\n"
                '# format = "avro", schema_file = "orders.avsc", and [source] options = { avroPrefix = "confluent" }'
            )
        return RAW.format(why=why)
    listed = ",\n".join(f"  {each}" for each in sample.columns)
    lines = [f"# From {sample.records:,} records of {topic}; others may differ."]
    if any(each.is_required for each in sample.columns):
        lines.append(
            "# `not null` was in every one of them, and a record without it is bad: take it away where needed."
        )
    # Escaped for TOML and for environment variables.
    text = _plain(listed).replace("\\", "\\\\").replace('"', '\\"')
    text = _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)
    lines.append(f'schema = """\n{text}"""')
    return PARSE.format(schema="\n".join(lines), topic=topic)


def _options(settings: Mapping[str, str], client_file: str | None) -> str:
    """The client settings of this cluster; secrets are read from the environment."""
    if client_file is not None:
        return f"# How to log in: MILLPOND_CLIENT_CONFIG={_comment(os.path.abspath(client_file))}\n{OPTIONS}"
    if not settings:
        return OPTIONS
    entries = []
    for name, value in settings.items():
        variable = re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        text = f"${{{variable}}}" if is_secret(name) else _plain(value)
        entries.append(f"{_text('kafka.' + name)} = {_text(text)}")
    return f"options = {{ {', '.join(entries)} }}"


def _comment(text: str) -> str:
    """On one line, escaped for environment variables."""
    return _plain(_CONTROL.sub("?", text.replace("\n", "?")))


def _plain(text: str) -> str:
    """Escaped for environment variables."""
    return text.replace("${", "$${")


def _text(text: str) -> str:
    """A TOML basic string. JSON's escapes are valid in TOML; only DEL must be escaped in addition."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _fitting(table: str, topic: str, sample: Inferred | None) -> str:
    """The example of a kind, with actual columns of matching types."""
    fitted = re.sub(r"(lake/|\")orders\b", rf"\g<1>{topic}", table)
    if sample is None or not sample.columns or is_raw(sample):
        return fitted
    names = {each.name for each in sample.columns}
    taken: set[str] = set()
    for word, types in COLUMNS.items():
        if word in names:
            continue
        fits = [each for kind in types for each in sample.columns if each.type == kind and not each.comment]
        # Only plain names: others would need quoting for TOML and SQL.
        free = [each.name for each in fits if each.name not in taken and _WORD.fullmatch(each.name)]
        if word in GROUPS:
            # Grouping by a unique column would be useless.
            free = [name for name in free if not _IDENTIFIER.fullmatch(name)]
        instead = free[0] if free else "_timestamp" if word == "at" else None
        if instead is not None:
            taken.add(instead)
            fitted = re.sub(rf"(?<![\w.]){word}(?![\w.])", instead, fitted)
        elif word in GROUPS:
            fitted = re.sub(
                rf'^(group_by = \["){word}("\])$', r"# \1…\2  # a column with few values", fitted, flags=re.M
            )
    return fitted
