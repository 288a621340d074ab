"""The columns that parsing adds to a source, as Spark's types. `columns` parses."""

from __future__ import annotations

from millpond.spark.parsing.fields import FAULT, PARSED, parsed_fields, parser_of
from millpond.spark.parsing.spark_types import spark_type

__all__ = ["FAULT", "PARSED", "parsed_fields", "parser_of", "spark_type"]
