"""Inside the room no file imports what imports it, not even for types: a part can be read without the whole."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import millpond.log

FOLDER = Path(millpond.log.__file__).parent
ROOM = "millpond.log"


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(ROOM):
            inner = node.module.removeprefix(ROOM).lstrip(".")
            found |= {inner} if inner else {name.name for name in node.names}
    return found


def test_no_file_is_part_of_a_circle() -> None:
    graph = {path.stem: imported(path) for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    order = list(TopologicalSorter(graph).static_order())
    assert len(order) == len(graph) > 20
    assert order[-1] == "store"
