"""Inside a room no file imports what imports it, not even for types: a part can be read without the whole."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import millpond

HOUSE = Path(millpond.__file__).parent

ROOMS = sorted(path.parent.name for path in HOUSE.glob("*/__init__.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else node.module)
    return names & modules


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_part_of_a_circle(room: str) -> None:
    paths = {module_of(path): path for path in sorted((HOUSE / room).rglob("*.py"))}
    graph = {module: imported(path, set(paths)) - {module} for module, path in paths.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert len(order) == len(graph) > 2
