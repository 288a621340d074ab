"""House rules that no other linter knows; each fault is one line that says what to do. Part of `make check`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dead

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "millpond"

FILE_LINES_LONG = 600
FUNCTION_LINES_LONG = 60
ABOVE_BROKER = ("remote", "node", "client", "sim", "admin", "testing", "console", "spark", "cli")

NOUNS = {"housekeeping.py"}
"""Files whose name ends as a participle does and is none."""

GENERATED = (
    "tools/config_docs.py",
    "tools/api_docs.py",
    "tools/spark_docs.py",
    "tools/lesson_docs.py",
)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def main() -> int:
    for warning in long_ones():
        print(f"warning: {warning}")
    faults = [*modules(), *participles(), *dead.faults(), *loose_dice(), *generated(), *words()]
    for fault in faults:
        print(fault)
    print(f"tidy: {len(faults)} faults" if faults else "tidy: all in order")
    return 1 if faults else 0


def modules() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(ROOT)
        if not ast.get_docstring(tree(path)):
            yield f"{where}: the head must say what the file is for"
        # `Later` hands every error on to whom it concerns; nothing else may take one that it does not know.
        below_node = where.parts[2] not in ABOVE_BROKER and where.name != "later.py"
        for node in ast.walk(tree(path)):
            if below_node and isinstance(node, ast.ExceptHandler) and _catches_all(node):
                yield f"{where}:{node.lineno}: below node an error is named, not caught by the bunch"


def long_ones() -> Iterator[str]:
    """Only a warning: a file is cut where the thing is two things, never because it met a limit."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        where = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES_LONG:
            yield f"{where} has {lines} lines; is it still one thing?"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_LONG:
                    yield f"{where}:{node.lineno}: {node.name} has {length} lines; is it still one thing?"


def participles() -> Iterator[str]:
    """A file is named for the thing in it."""
    for path in sorted(SOURCE.rglob("*ing.py")):
        if path.name not in NOUNS:
            yield f"{path.relative_to(ROOT)}: name the file by a noun, for what is in it"


def loose_dice() -> Iterator[str]:
    """Random tests can be played again: their dice come from tests/support/seeds.py."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "\nimport random\n" not in text:
            continue
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr=called)) if called != "Random":
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: take dice from support.seeds, not random.{called}"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


def generated() -> Iterator[str]:
    for tool in GENERATED:
        if (ROOT / tool).exists():
            run = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, capture_output=True, text=True)
            if run.returncode:
                yield f"{tool}: what it generates is out of date; run make docs ({run.stdout.strip()})"
        else:
            yield f"{tool}: missing"


def words() -> Iterator[str]:
    """Unfinished work does not hide in a comment, and no file knows the machine that it was written on."""
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX ", "/wo" + "rk/", "/ro" + "ot/")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in filter(None, files):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for mark in marks:
                if mark in line:
                    yield f"{name}:{number}: has {mark.strip()!r}"


if __name__ == "__main__":
    sys.exit(main())
