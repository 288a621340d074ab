"""Code blocks of the docs: Python runs against a node, commands are parsed by the command line.

A block that is not run here needs a reason below.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from millpond.cli import command
from support.pages import Block, blocks
from support.patience import with_time

ALL = list(blocks())


@dataclass(frozen=True)
class Run:
    """How to run a block of Python: code before and after it, and replacements in it."""

    before: str = ""
    after: str = ""
    replacements: Mapping[str, str] = field(default_factory=dict)


TYPED = """
import os, sqlite3
from dataclasses import dataclass
from millpond import Producer, Send, SqliteIds, worker

@dataclass
class Order:
    id: str
    customer: str
    total: float

os.environ["POD_NAME"] = "billing-1"
with Producer() as producer:
    producer.send("typed", {"id": "a", "customer": "ann", "total": 2.5}).result(20)
"""
IDLE = {"charge.run()": "charge.run(until_idle_s=0.5)"}
QUEUE_IDLE = {"resize.run()": "resize.run(until_idle_s=0.5)"}
ONCE = 'docs/client.md: @worker("orders", group="billing", delivery="exactly_once", '
TO_TYPED = {'"orders"': '"typed"', 'group="billing"': 'group="typed"'}

RUN = {
    "README.md: from confluent_kafka import Producer": Run(),
    "README.md: from millpond import Message, Retry, worker": Run(replacements=IDLE),
    "docs/admin.md: from millpond.admin.lag import LagWatch": Run(
        "from millpond import Consumer\n"
        'with Consumer(group="billing", topics=["orders"]) as reader:\n    reader.next(5)\n    reader.commit()\n'
    ),
    "docs/client.md: from millpond import Producer": Run(after="assert delivery.topic == 'orders'"),
    "docs/client.md: from millpond import Consumer": Run(
        replacements={"while True": "for _ in range(2)", ", message.json()": ""}
    ),
    "docs/client.md: from millpond import Message, Retry, worker": Run(replacements=IDLE),
    "docs/client.md: from millpond import Queue": Run(after="assert message.json() == {'image': 7}"),
    "docs/client.md: from millpond import Retry, worker": Run(replacements=QUEUE_IDLE),
    "docs/queues.md: from millpond import Queue, Retry, worker": Run(
        after="assert resize.stats.processed >= 1", replacements=QUEUE_IDLE
    ),
    ONCE + 'instance=os.environ["POD_NAME"])': Run(
        TYPED, "charge.run(until_idle_s=0.5); assert charge.stats.processed >= 1", TO_TYPED
    ),
    ONCE + 'processed=SqliteIds("billing.db"))': Run(
        TYPED + 'with sqlite3.connect("billing.db") as db:\n    db.execute("create table accounts (id, balance)")\n',
        "charge.run(until_idle_s=0.5); assert charge.stats.processed >= 1",
        TO_TYPED | {'group="billing"': 'group="books"'},
    ),
    'docs/client.md: producer.send("orders", order, key=salted("customer-42", buckets=8, by=order.id))': Run(
        TYPED + 'from millpond import salted\nproducer = Producer()\norder = Order("a", "ann", 1.0)\n',
        "producer.close()",
    ),
    'docs/client.md: with Consumer(topics=["accounts"]) as consumer:': Run(
        "from millpond import Consumer\nstate = {}\n", "assert state == {b'ann': {'balance': 1}}"
    ),
}
"""Blocks by page and first line."""

SPARK = "part of a Spark job; tests/spark has complete ones"
OWN = "part of a test with the reader's own code; tests/testing runs each call"
NOT_RUN = {
    "README.md: import runpy": "a secure node; tests/cli/test_secure.py uses the settings in the same way",
    "README.md: import millpond.spark": "Spark: run by test_the_spark_example_of_the_readme_shows_rows",
    "docs/analysis.md": "tests/docs/test_analysis.py runs the page",
    "docs/client.md: producer = Producer(serializer=registry_serializer(AvroSerializer(registry, schema)))":
        "needs a schema registry; tests/client/test_payloads.py has stubs of one",
    "docs/monitoring.md": "needs OpenTelemetry; tests/client/test_tracing.py runs the same where it is installed",
    "docs/ecosystem.md": "needs a schema registry; tests/examples/test_avro_registry.py runs the whole program",
    "docs/lake.md": SPARK,
    "docs/spark.md": SPARK,
    "docs/testing.md": OWN,
    "docs/tutorial.md": "tests/docs/test_tutorial.py runs the whole page",
}  # fmt: skip

COMMANDS_NOT_RUN = {
    "README.md: make up": "installs; tests/clients/test_readme.py runs it on a clean copy",
    "README.md: . .venv/bin/activate": "tests/clients/test_readme.py runs it on a clean copy",
    "README.md: millpond cluster up": "three nodes and a pid from a table; tests/cli/cluster does the same",
    "README.md: millpond up --secure": "tests/cli/test_secure.py runs them",
    "README.md: millpond pipeline run": "Spark; tests/docs/test_tutorial.py runs one",
    "README.md: pip install": "installs; tests/dist does it in an empty environment",
    "docs/analysis.md": "tests/docs/test_analysis.py runs the page",
    "docs/cli.md": "needs a password prompt and shell files; tests/cli runs each of them",
    "docs/console.md": "tests/cli/test_console.py and tests/console run them",
    "docs/cluster.md": "several machines or nodes; docs/operations.md has the same commands",
    "docs/dead-letters.md": "a list of commands with explanations; tests/cli/test_dlq.py runs all",
    "docs/monitoring.md": "tests/cli/test_monitoring.py and tests/deploy/test_monitoring.py run them",
    "docs/ecosystem.md": "parts of examples; tests/examples runs them with Apache Kafka",
    "docs/planning.md": "output of a command",
    "docs/queues.md": "a list of commands with explanations; tests/cli/queue/test_queue.py runs all",
    "docs/simulator.md": "tests/cli/test_sim.py and tests/console/test_simulator.py run them",
    "docs/security.md": "tests/cli/test_secure.py, test_cert.py and test_quota.py run them; settings of nodes",
    "docs/spark.md": "Spark; tests/docs/test_tutorial.py runs the same",
    "docs/moving.md": "tests/docs/test_moving.py runs the page against Apache Kafka",
    "docs/operations.md": "tests/docs/test_operations.py runs the page",
    "docs/tutorial.md": "tests/docs/test_tutorial.py runs the page",
    "examples/": "tests/examples runs the same programs",
}


def key_of(block: Block) -> str:
    return f"{block.page}: {block.first.partition('  #')[0]}"


def reason_of(block: Block, reasons: Mapping[str, str]) -> str | None:
    return next((reason for begin, reason in reasons.items() if key_of(block).startswith(begin)), None)


PYTHON = [each for each in ALL if each.kind == "python"]
SHELL = [each for each in ALL if each.kind in ("", "sh", "bash", "console")]


def test_every_block_is_run_or_has_a_reason() -> None:
    kinds = Counter(each.kind for each in ALL)
    assert set(kinds) <= {"", "sh", "python", "toml", "text", "ini", "yaml", "json", "html", "dockerfile", "java"}
    run = [each for each in PYTHON if key_of(each) in RUN]
    unexplained = [each for each in PYTHON if each not in run and reason_of(each, NOT_RUN) is None]
    unexplained += [each for each in SHELL if not reason_of(each, COMMANDS_NOT_RUN)]
    assert list(map(str, unexplained)) == [], "run them, or add a reason"
    assert RUN.keys() - {key_of(each) for each in run} == set(), "blocks in RUN that are not on the pages"
    print(f"{len(ALL)} blocks: {len(run)} of {len(PYTHON)} in Python are run here, {len(SHELL)} are commands")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_its_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "millpond":
            module = import_module(str(node.module))
            for each in node.names:
                assert hasattr(module, each.name), f"{node.module} has no {each.name}"


@pytest.mark.parametrize("block", [each for each in PYTHON if key_of(each) in RUN], ids=str)
def test_python_runs(block: Block, millpond_shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = RUN[key_of(block)]
    pond = millpond_shared
    for topic in ("orders", "orders.dlq", "purchases", "purchases.dlq", "typed", "payments", "accounts", "jobs"):
        if topic not in pond.admin.list_topics(timeout=20).topics:
            pond.create_topic(topic)
            if topic in ("accounts", "orders"):
                pond.produce(topic, ("ann", b'{"balance": 1}'))
    text = block.text.replace("127.0.0.1:9092", pond.bootstrap)
    for old, new in how.replacements.items():
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", pond.bootstrap)
    monkeypatch.setenv("POD_NAME", "")
    monkeypatch.chdir(tmp_path)
    exec(compile(f"{how.before}\n{text}\n{how.after}\n", str(block), "exec"), {"__name__": "__main__"})


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The arguments of `millpond` on each line of the blocks."""
    for block in SHELL:
        text = re.sub(r"\\\n\s*", " ", block.text)
        for line in text.splitlines():
            for part in re.split(r"\||&&|;|\$\(", line):
                words = _words(part)
                if words and words[0].rpartition("/")[2] == "millpond":
                    yield f"{block}: {line.strip()[:60]}", words[1:]


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text.strip(), comments=True)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z_]+=.*|nohup|exec|sudo|time|!", words[0]):
        words = words[1:]
    return [each for each in words if not re.fullmatch(r"[0-9]?>.*|&|<.*|\)", each)]


def test_the_command_line_accepts_every_command() -> None:
    errors = []
    for line, words in command_lines():
        try:
            _parse(words)
        except click.UsageError as error:
            errors.append(f"{line}: {error.format_message()}")
    assert errors == []


def _parse(words: list[str]) -> None:
    """Parse all arguments without running the command."""
    group: click.Command = command
    context = click.Context(group, info_name="millpond")
    while isinstance(group, click.Group):
        if not words or words[0].startswith("-"):
            return
        subcommand = group.get_command(context, words[0])
        if subcommand is None:
            raise click.UsageError(f"unknown command {words[0]}")
        group, words = subcommand, words[1:]
        context = click.Context(group, parent=context, info_name=group.name)
    if any(re.fullmatch(r"[A-Z]+|\[.*|…|\.\.\.", each) for each in words) or not words:
        return
    parser = group.make_parser(context)
    parser.parse_args(words)


@with_time
def test_the_spark_example_of_the_readme_shows_rows(millpond: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    (block,) = [each for each in PYTHON if key_of(each).startswith("README.md: import millpond.spark")]
    millpond.create_topic("purchases")
    millpond.produce("purchases", *(f'{{"purchase": {number}}}'.encode() for number in range(3)))
    (tmp_path / "job.py").write_text(block.text)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    result = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment | {"MILLPOND_BOOTSTRAP": millpond.bootstrap},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert '{"purchase": 2}' in result.stdout
