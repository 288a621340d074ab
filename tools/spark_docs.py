"""Write docs/spark_options.md from the declarations of the options; `--check` fails when it is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millpond.spark.option import READS, WRITES, Option
from millpond.spark.options import KAFKA_REFUSED, OPTIONS

PAGE = Path(__file__).parent.parent / "docs" / "spark_options.md"

INTRODUCTION = """\
# Options of the Spark source and sink

`tools/spark_docs.py` generates this page from the declarations in `src/millpond/spark/options.py`.

Names and defaults are those of Spark's own Kafka source and sink. An unknown option is refused with the nearest known
name. Case does not matter. `kafka.*` is passed to the connection without its prefix; a setting that no Kafka client
has is refused, and one without effect here is logged. These have an effect: `kafka.bootstrap.servers` (else
`MILLPOND_BOOTSTRAP`, else `127.0.0.1:9092`), `kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`,
`kafka.client.id`, `kafka.isolation.level`, `kafka.max.partition.fetch.bytes`, `kafka.request.timeout.ms`,
`kafka.default.api.timeout.ms`, and for the sink the producer's settings.
"""

PLACES = {"read": "batch", "readStream": "stream", "write": "batch", "writeStream": "stream"}


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield '## Reading: `spark.read.format("millpond")`, `spark.readStream.format("millpond")`\n'
    yield from _table([each for each in OPTIONS if each.where & READS])
    yield '\n## Writing: `df.write.format("millpond")`, `df.writeStream.format("millpond")`\n'
    yield from _table([each for each in OPTIONS if each.where & WRITES])
    yield "\n## Refused settings of Kafka clients\n"
    yield "| Setting | When | Reason, and what to do |"
    yield "|---|---|---|"
    for name, (where, reason) in KAFKA_REFUSED.items():
        when = " and ".join(word for word, places in (("reading", READS), ("writing", WRITES)) if where & places)
        yield f"| `kafka.{name}` | {when} | {reason} |"


def _table(options: list[Option[Any]]) -> Iterator[str]:
    yield "| Option | Default | For | Description |"
    yield "|---|---|---|---|"
    for option in options:
        default = option.shown or f"`{str(option.default).lower()}`"
        places = " and ".join(dict.fromkeys(PLACES[each] for each in PLACES if each in option.where))
        yield f"| `{option.name}` | {default} | {places} | {option.doc} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/spark_options.md is out of date: run tools/spark_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
