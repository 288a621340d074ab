"""Within a package no import cycles exist, not even for types or inside functions."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import millpond

ROOT = Path(millpond.__file__).parent

PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else node.module)
    return names & modules


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_part_of_an_import_cycle(package: str) -> None:
    paths = {module_of(path): path for path in sorted((ROOT / package).rglob("*.py"))}
    graph = {module: imports(path, set(paths)) - {module} for module, path in paths.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert len(order) == len(graph) > 2
