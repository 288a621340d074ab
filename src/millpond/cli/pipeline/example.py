"""The example that `millpond pipeline init` writes: a declaration with its reasons beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from millpond.base.names import nearest
from millpond.cli.pipeline.file import Wrong
from millpond.spark.pipelines.kinds import KINDS

HEAD: Final = """\
# A pipeline: topics in, tables and topics out. Run it with
#   millpond pipeline run {name}.toml
# Relative paths begin where this file is. ${{NAME}} is taken from the environment, ${{NAME:-otherwise}} too.

name = "{name}"
# checkpoint = ".millpond/pipelines/{name}"   # its state: positions, counts of windows; keep it
trigger = "continuous"                         # or "10 seconds", or "available_now" to take what is there and end

[source]
bootstrap = "${{MILLPOND_BOOTSTRAP:-127.0.0.1:9092}}"
topic = "{topic}"                               # or ["a", "b"], or pattern = "orders-.*"
start = "earliest"                             # of the first run: "earliest", "latest", "2026-01-31T08:30:00Z"
# group = "{name}"                             # show its lag as a group's: millpond group describe {name}
# options = {{ maxOffsetsPerTrigger = 100000 }}  # any option of the source

[parse]
format = "json"                                # or "avro", or "raw" for the bytes as they are
schema = "id long, customer string, region string, at timestamp, total double"
bad_records = "dead_letters"                   # or "fail", or "null": the row stays, with the reason in _fault
# dead_letters = "{topic}.dlq"

# Spark SQL between source and jobs. `input` is the step before. Beside the parsed columns there are
# _key, _value, _topic, _partition, _offset, _timestamp and _headers.
# [[transform]]
# sql = "select *, total > 1000 as is_large from input"

# [spark]
# master = "local[*]"
# conf = {{ "spark.driver.memory" = "2g" }}
"""


def example(name: str, topic: str, wanted: Sequence[str]) -> str:
    """A declaration with a job of each kind that is wanted."""
    word = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-_") or "pipeline"
    for each in wanted:
        if each not in KINDS:
            raise Wrong(f"There is no kind {each}{nearest(each, KINDS)} The kinds are {', '.join(KINDS)}.")
    first = list(wanted) or [next(iter(KINDS))]
    parts = [HEAD.format(name=word, topic=topic)]
    parts += [f"# {KINDS[each].doc}\n{KINDS[each].example.strip()}\n" for each in first]
    others = [kind for kind in KINDS.values() if kind.name not in first]
    if others:
        width = max(len(kind.name) for kind in others) + 2
        lines = (f"#   {'[' + kind.name + ']':<{width}}  {kind.doc}" for kind in others)
        parts.append(
            "# Further kinds of jobs, each with `millpond pipeline init --kind KIND`:\n" + "\n".join(lines) + "\n"
        )
    return "\n".join(parts)
