"""How much of each room its own tests call: a function that none of them calls is tested by nobody. `make coverage`.

python tools/coverage.py log wire
python tools/coverage.py --missed log

Counts what runs inside the tests' own processes. What only a real node, Spark or a command line runs is not seen:
such rooms have no floor here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import called

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "millpond"


class Room(NamedTuple):
    floor: int
    """Percent of its functions that must be called."""
    tests: tuple[str, ...] = ()
    """Beside its own folder."""


ROOMS = {
    "base": Room(85),
    "config": Room(75),
    "wire": Room(96),
    "log": Room(95),
    "metadata": Room(90),
    "coordinators": Room(90),
    "quorum": Room(95, ("sim/machines/quorum/test_scenario.py",)),
    "replication": Room(95, ("sim/machines/replication/test_scenario.py",)),
    "broker": Room(80, ("sim/records/test_scenario.py", "sim/coordination/test_scenario.py")),
}


def main(arguments: list[str]) -> int:
    shows_missed = "--missed" in arguments
    rooms = [each for each in arguments if not each.startswith("-")] or list(ROOMS)
    short = 0
    for room in rooms:
        defined = dict(functions(room))
        seen = run(room)
        missed = [f"{key} {name}" for key, name in defined.items() if key not in seen]
        percent = 100 * (len(defined) - len(missed)) // max(len(defined), 1)
        verdict = "" if percent >= ROOMS[room].floor else f", less than {ROOMS[room].floor}"
        short += bool(verdict)
        print(f"{room:14} {percent:3} % of {len(defined):4} functions{verdict}", flush=True)
        if shows_missed or verdict:
            print("\n".join(f"    {each}" for each in missed))
    return 1 if short else 0


def functions(room: str) -> Iterator[tuple[str, str]]:
    """Every function that does something, by file and first line as Python counts it: from its decorators on."""
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_empty(node):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                yield f"{path.relative_to(SOURCE)}:{first}", node.name


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        isinstance(each, ast.Pass) or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in node.body
    )


def run(room: str) -> set[str]:
    with tempfile.TemporaryDirectory() as notes:
        tests = [str(ROOT / "tests" / each) for each in (room, *ROOMS[room].tests)]
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "called", *tests]
        path = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run(
            words,
            env={**os.environ, "PYTHONPATH": path, called.NOTES: notes},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            print(ran.stdout[-2000:])
        return {line for each in Path(notes).iterdir() for line in each.read_text().split("\n")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
