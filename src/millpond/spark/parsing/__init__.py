"""Parse record values by a schema into a Spark column, with a reason for each bad value.

`Parser(format, schema).parse(values)`. A null value is a tombstone: it is not bad, its row is null.
"""

from __future__ import annotations

from millpond.spark.parsing.errors import SchemaError
from millpond.spark.parsing.fields import FAULT, PARSED, parsed_fields, parser_of
from millpond.spark.parsing.parser import Parsed, Parser
from millpond.spark.parsing.schemas import inline_schema, read_schema, schema_of_file

__all__ = [
    "FAULT",
    "PARSED",
    "Parsed",
    "Parser",
    "SchemaError",
    "inline_schema",
    "parsed_fields",
    "parser_of",
    "read_schema",
    "schema_of_file",
]
