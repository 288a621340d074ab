"""Finds definitions of `src` that nothing names: functions, classes, constants and methods. Part of `tidy.py`.

A definition lives when its name stands anywhere else in src, bench, tools or examples: in code, in an import, or as a
whole string. Names are compared, not resolved, so what is found is dead for certain, and some of the dead are missed.
What only tests name is dead, too, unless it is there for them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
USERS = ("src", "bench", "tools", "examples", "setup.py", "pyproject.toml")

FOR_TESTS = ("millpond/sim/", "millpond/testing/")
"""Rooms that exist for tests: there, being named by a test is a life."""

CLICK = "click, for a group of commands"
PROTOCOL = "asyncio, for a protocol"
REPLICATION = "replication on real nodes, which comes next; the log promises it already"
PYTEST = "pytest, for a plugin"
SPARK = "Spark, for a data source"
STATE = "Spark, for a stateful processor"

CALLED_BY_OTHERS = {
    "_condition": "the standard future",
    "append_follower": REPLICATION,
    "as_": "whoever writes a handler",
    "begin_truncation": REPLICATION,
    "connection_lost": PROTOCOL,
    "connection_made": PROTOCOL,
    "data_received": PROTOCOL,
    "eof_received": PROTOCOL,
    "finish_truncation": REPLICATION,
    "format_commands": CLICK,
    "getDefaultReadLimit": SPARK,
    "get_command": CLICK,
    "handleExpiredTimer": STATE,
    "handleInputRows": STATE,
    "initialOffset": SPARK,
    "list_commands": CLICK,
    "pause_writing": PROTOCOL,
    "prepareForTriggerAvailableNow": SPARK,
    "pytest_addoption": PYTEST,
    "pytest_configure": PYTEST,
    "reportLatestOffset": SPARK,
    "resume_writing": PROTOCOL,
    "streamReader": SPARK,
    "streamWriter": SPARK,
}
"""Names that somebody outside our code calls, and who that is."""

SEEN_BY_TESTS = {
    "LZ4": "each codec has its name",
    "SNAPPY": "each codec has its name",
    "is_stalled": "how a test sees who has to wait",
    "producer_states": "how a test sees what a log knows of producers",
}
"""Names that only tests use, and why they stay."""

DECLARATIONS = {"Option", "Setting"}
"""What makes these is collected where it is declared."""

PLAIN_DECORATORS = {"property", "staticmethod", "classmethod", "cached_property", "dataclass", "contextmanager"}
"""Any other decorator may hand what it decorates to somebody, who calls it."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Definition(NamedTuple):
    path: Path
    line: int
    name: str


class Names(NamedTuple):
    """The names that some files use: those that reach beyond their file, and those that do not, by file."""

    far: set[str]
    near: dict[Path, set[str]]
    beginnings: set[str]
    """Of names that are put together: `f"_fault_{kind}"`."""

    def has(self, found: Definition) -> bool:
        return (
            found.name in self.far
            or found.name in self.near.get(found.path, ())
            or found.name.startswith(tuple(self.beginnings))
        )


def faults() -> Iterator[str]:
    used = names_in(USERS)
    # Tests use no names by chance: any word will do, and reading words is quick.
    tested = {word for path in (ROOT / "tests").rglob("*.py") for word in _WORD.findall(path.read_text())}
    defined = [found for path in sorted(SOURCE.rglob("*.py")) for found in definitions(path, tree(path))]
    for found in defined:
        where = found.path.relative_to(SOURCE)
        if used.has(found) or found.name in CALLED_BY_OTHERS:
            continue
        if found.name not in tested:
            yield f"src/{where}:{found.line}: nothing names {found.name}; delete it"
        elif not str(where).startswith(FOR_TESTS) and found.name not in SEEN_BY_TESTS:
            yield f"src/{where}:{found.line}: only tests name {found.name}; delete it with them"
    gone = (CALLED_BY_OTHERS.keys() | SEEN_BY_TESTS.keys()) - {found.name for found in defined}
    for name in sorted(gone):
        yield f"tools/dead.py: {name} is not defined any more; take it off the list"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def definitions(path: Path, tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        yield from _defined(path, node)


def _defined(path: Path, node: ast.stmt) -> Iterator[Definition]:
    names: list[str] = []
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            names = [] if _is_handed_over(node) else [node.name]
        case ast.ClassDef():
            names = [] if _is_handed_over(node) else [node.name]
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _defined(path, inner)
        case ast.Assign() if not _declares(node.value):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            names = [name]
        case ast.If():
            for inner in node.body:
                yield from _defined(path, inner)
    for name in names:
        if not name.startswith("__"):
            yield Definition(path, node.lineno, name)


def _declares(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return isinstance(made, ast.Name) and made.id in DECLARATIONS


def _is_handed_over(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in PLAIN_DECORATORS and not isinstance(called, ast.Attribute):
            return True
        if isinstance(called, ast.Attribute) and name not in ("setter", "cached_property", "contextmanager"):
            return True
    return False


def names_in(tops: tuple[str, ...]) -> Names:
    """All names that these files, and those in these folders, use; definitions left aside."""
    names = Names(set(), {}, set())
    for top in tops:
        files = [ROOT / top] if (ROOT / top).is_file() else sorted((ROOT / top).rglob("*.py*"))
        for path in files:
            if path.suffix == ".py":
                names.near[path] = set()
                _collect(tree(path), names.near[path], names.far)
                names.beginnings.update(_beginnings(tree(path)))
            elif path.suffix in (".pyx", ".toml"):
                names.far.update(_WORD.findall(path.read_text()))
    return names


def _beginnings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.isidentifier() and text[-1] == "_":
                yield text


def _collect(tree: ast.AST, near: set[str], far: set[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                near.add(node.id)
        elif isinstance(node, ast.Attribute):
            far.add(node.attr)
        elif isinstance(node, ast.alias):
            far.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.keyword):
            if node.arg:
                far.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            far.add(node.value)
