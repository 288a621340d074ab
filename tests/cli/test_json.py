"""Wherever there is a table there is --json, and what it prints is JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import millpond.cli
from millpond.cli import command as root

CLI = Path(millpond.cli.__file__).parent
TABLES = {"print_table", "print_list", "empty_table"}

WITHOUT = {
    (
        "cluster",
        "up",
    ): "a view of what runs, until it ends; `cluster status --json` is for programs",
    ("sql",): "`--format json` is one of its formats",
}
"""Commands with a table and no JSON, and why."""

ELSEWHERE = {
    ("cluster", "restart"): "needs two nodes: tests/cli/cluster",
    ("cluster", "rescue"): "needs a folder that survived: tests/cli/cluster",
    ("node", "drain"): "needs two nodes: tests/cluster",
    **{("queue", verb): "needs a share group: tests/cli/queue" for verb in ("list", "describe", "purge")},
    ("backup",): "needs a node's folder: tests/admin/test_backup.py",
    ("pipeline", "check"): "tests/cli/pipeline",
    ("pipeline", "run"): "needs Spark: tests/cli/pipeline",
    ("pipeline", "status"): "tests/cli/pipeline",
    ("sim", "replay"): "needs a link: tests/cli/test_sim.py",
    **{
        (noun, verb): "needs a login: tests/cli/test_secure.py"
        for noun, verbs in {"acl": ("add", "list", "change", "remove"), "token": ("add", "list", "change")}.items()
        for verb in verbs
    },
}
"""Whose JSON other tests read."""

Path_ = tuple[str, ...]
"""The words that lead to a command."""

Definition = tuple[str, str]
"""A module of the command line, and a name that it defines."""


def leaves(group: click.Group = root, path: Path_ = ()) -> Iterator[tuple[Path_, click.Command]]:
    """Every command that is no group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        references_of = group.get_command(context, name)
        assert references_of is not None
        if isinstance(references_of, click.Group):
            yield from leaves(references_of, (*path, name))
        else:
            yield (*path, name), references_of


def options_of(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts}


@cache
def references() -> dict[Definition, set[Definition]]:
    """Which definitions of the command line each of them names: functions, classes and tables of functions."""
    references_of: dict[Definition, set[Definition]] = {}
    for file in CLI.rglob("*.py"):
        module = ".".join(("millpond.cli", *file.relative_to(CLI).with_suffix("").parts)).removesuffix(".__init__")
        tree = ast.parse(file.read_text())
        definitions: dict[str, Definition] = {
            (alias.asname or alias.name): (each.module, alias.name)
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("millpond.cli")
            for alias in each.names
        }
        own = [(name, each) for each in tree.body for name in names_of(each)]
        definitions |= {name: (module, name) for name, _ in own}
        for name, each in own:
            named = {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
            references_of[module, name] = {definitions[one] for one in named & definitions.keys()}
    return references_of


def names_of(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def draws_a_table(command: click.Command) -> bool:
    function: Any = command.callback
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    start = (function.__module__, function.__name__)
    seen, waiting = {start}, [start]
    while waiting:
        for each in references().get(waiting.pop(), set()) - seen:
            seen.add(each)
            waiting.append(each)
    return any(module == "millpond.cli.terminal" and name in TABLES for module, name in seen)


def test_every_command_with_a_table_has_json() -> None:
    drawing = {path: command for path, command in leaves() if draws_a_table(command)}
    # That the walk through the source finds them: one plainly, one through other files, one through a table.
    assert {("topic", "list"), ("topic", "describe"), ("log", "dump"), ("cluster", "up")} <= drawing.keys()
    without = {path for path, command in drawing.items() if not options_of(command) & {"--json", "--json-lines"}}
    assert without == WITHOUT.keys()


@pytest.fixture
def run(node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", node.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*words: str) -> str:
        done = CliRunner().invoke(root, words)
        assert done.exit_code == 0, (words, done.output)
        return done.stdout

    return run


def test_what_json_prints_is_json(run: Any, node: Any, quick: Any, topic: str, tmp_path: Path) -> None:
    certificates = ("--folder", str(tmp_path / "tls"))
    quick.create("letters.dlq")
    quick.send(topic, "a", b"\xff")
    writer = Producer({"bootstrap.servers": node.address, "transactional.id": topic, "log_level": 0})
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(topic, b"in a transaction")
    writer.commit_transaction(60)
    run("profile", "add", "here", "--bootstrap", node.address)
    lines = {
        ("topic", "list"): (),
        ("topic", "describe"): (topic,),
        ("topic", "move"): (topic, "--to", "1", "--dry-run"),
        ("topic", "replicas"): (topic, "--factor", "1", "--dry-run"),
        ("node", "list"): (),
        ("node", "describe"): ("1",),
        ("cluster", "status"): (),
        ("cluster", "features"): (),
        ("cluster", "upgrade"): ("--dry-run",),
        ("cluster", "downgrade"): ("metadata.version=25", "--dry-run"),
        ("cluster", "balance"): ("--dry-run",),
        ("config", "list"): ("topic", topic, "--all"),
        ("config", "get"): ("node", "1", "num.partitions"),
        ("config", "set"): ("topic", topic, "retention.ms=1", "--dry-run"),
        ("config", "unset"): ("topic", topic, "retention.ms"),
        ("group", "reset"): (topic, "--topic", topic, "--to-earliest", "--yes"),
        ("group", "list"): (),
        ("group", "describe"): (topic,),
        ("group", "history"): (topic,),
        ("txn", "list"): (),
        ("txn", "describe"): (topic,),
        ("txn", "hanging"): ("--topic", topic),
        ("dlq", "list"): (),
        ("dlq", "stats"): ("letters.dlq",),
        ("trace",): ("--topic", topic, "--count", "3"),
        ("plan",): (),
        ("profile", "list"): (),
        ("profile", "show"): ("here",),
        ("help",): (),
        ("top",): ("--once",),
        ("sim", "list"): (),
        ("sim", "run"): ("keys",),
        ("user", "add"): ("ann", "--random"),
        ("user", "change"): ("ann", "--random"),
        ("user", "list"): (),
        ("quota", "add"): ("--client-id", topic, "--produce", "9GB/s"),
        ("quota", "change"): ("--client-id", topic, "--fetch", "9GB/s"),
        ("quota", "list"): (),
        ("cert", "authority"): certificates,
        ("cert", "add"): ("ann", *certificates),
        ("cert", "change"): ("ann", *certificates),
        ("cert", "list"): certificates,
        ("cert", "show"): ("ann", *certificates),
    }
    having = {path for path, command in leaves() if "--json" in options_of(command)}
    # Whether all is well on this machine is not for this test to say; its own reads it.
    assert lines.keys() | ELSEWHERE.keys() | {("status",)} == having
    for path, more in lines.items():
        json.loads(run(*path, *more, "--json"))
    # Other tests ask the same node what there is.
    run("quota", "remove", "--client-id", topic, "--yes")
    run("user", "remove", "ann", "--yes")
    folder = node.data / f"{topic}-0"
    files = [str(each) for each in folder.iterdir()]
    assert {str(folder / each) for each in ("leader-epoch-checkpoint", "partition.metadata")} <= {*files}
    dumps = [("log", "dump", each, "--records") for each in files]
    for words in (("consume", topic, "--until-end"), *dumps):
        printed = run(*words, "--json-lines").splitlines()
        assert all(isinstance(json.loads(line), dict) for line in printed), words
