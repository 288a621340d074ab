"""Reasons are extracted from Spark's error texts, here those of Spark 4.3."""

from __future__ import annotations

import pytest

from millpond.spark.pipelines.reasons import LENGTH_MAX, reason_in, reason_of

QUERY = """
=== Streaming Query ===
Identifier: p.read [id = 0a5b2e69-77fe-4b90-b87c-2d639dce63f8, runId = be9afa2c-de41-4808-a25e-5b01d317e977]
Current Committed Offsets: {}
Current State: ACTIVE

Logical Plan:
WriteToMicroBatchDataSource noop-table
+- ~StreamingDataSourceV2ScanRelation[a#2] millpond
"""

SOURCE = f"""\
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 281, in main
  File "stream_reader.py", line 19, in latestOffset
    raise UnknownTopic("there is no topic")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
millpond.client.errors.UnknownTopic: there is no topic 'orders'; create it first: millpond topic create orders
 SQLSTATE: 38000{QUERY}"""

TASK = f"""\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "reading.py", line 24, in read
    raise DecodeFailed(text)
millpond.client.errors.DecodeFailed: orders[0] offset 5: id is 'x', which is no long.
Set badRecords to dead_letters to go on.
 SQLSTATE: 38000{QUERY}"""

CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in a
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1, in b
ValueError: the tap is closed

JVM stacktrace:
org.apache.spark.SparkException"""

COLUMN = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `valeu` cannot be resolved. \
Did you mean one of the following? [`value`, `timestamp`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['valeu]
+- ~SubqueryAlias input
"""

VIEW = """\
[TABLE_OR_VIEW_NOT_FOUND] The table or view `imput` cannot be found. Verify the spelling.
Search path: [`system`.`builtin`].
To tolerate the error on drop use DROP VIEW IF EXISTS. SQLSTATE: 42P01; line 1 pos 18;
'Project ['value]
+- 'UnresolvedRelation [imput], [], false
"""

SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec
^^^
"""

CALL = """\
An error occurred while calling o128.save.
: org.apache.spark.SparkException: [DATA_SOURCE_NOT_FOUND] Data source millpond not found. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(QueryExecutionErrors.scala:722)
"""

JAVA = """\
Query p.read [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 in stage 1.0 \
failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver): \
java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
Caused by: java.lang.Exception
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SOURCE, "there is no topic 'orders'; create it first: millpond topic create orders"),
        (TASK, "orders[0] offset 5: id is 'x', which is no long. Set badRecords to dead_letters to go on."),
        (CHAINED, "ValueError: the tap is closed"),
        (
            COLUMN,
            "A column, variable, or function parameter with name `valeu` cannot be resolved. "
            "Did you mean one of the following? [`value`, `timestamp`]",
        ),
        (VIEW, "The table or view `imput` cannot be found. Verify the spelling."),
        (SYNTAX, "Syntax error at or near 'selec'"),
        (JAVA, "No space left on device"),
        (CALL, "Data source millpond not found"),
        ("plain words", "plain words"),
        ("Traceback (most recent call last):\n  File x\nMemoryError\n", "MemoryError"),
    ],
)
def test_the_reason_is_extracted_from_sparks_text(text: str, reason: str) -> None:
    assert reason_in(text).rstrip(".") == reason.rstrip(".")


def test_an_error_without_a_message_is_its_class_name() -> None:
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_a_reason_is_truncated() -> None:
    assert len(reason_in("x" * 10_000)) == LENGTH_MAX
