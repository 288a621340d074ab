"""Which tests `make test` runs, and which it leaves to `make test-all`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import tiers

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("folder", "fixtures", "marks", "extended"),
    [
        ("log", {"tmp_path"}, set(), False),
        ("log", {"tmp_path"}, {"slow"}, True),
        ("node", set(), {"boundary"}, True),
        ("remote", {"node"}, set(), True),
        ("remote", {"node"}, {"smoke"}, False),
        ("client", {"broker"}, set(), True),
        ("sim", {"broker"}, set(), False),
        ("cluster", set(), set(), True),
        ("cluster", set(), {"slow", "smoke"}, False),
    ],
)
def test_boundary_and_slow_tests_are_extended_unless_marked_smoke(
    folder: str, fixtures: set[str], marks: set[str], extended: bool
) -> None:
    assert tiers.is_extended(folder, fixtures, marks) is extended


@pytest.mark.parametrize("node", ["a parameter that is called as a fixture is"])
def test_a_parameter_is_not_taken_for_a_fixture(node: str, request: pytest.FixtureRequest) -> None:
    assert "node" in request.node.fixturenames
    assert "node" not in tiers.fixtures_of(request.node)


def test_every_folder_with_a_rule_exists() -> None:
    for folder in tiers.BOUNDARY_FOLDERS | tiers.BOUNDARY_FIXTURES_OF.keys():
        assert (ROOT / "tests" / folder).is_dir(), folder


def test_every_test_is_run_by_one_of_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    chosen = re.findall(r"(?m)^\t@.*\$\(PYTEST\) -m (.*) \$\(ARGS\)$", makefile)
    assert chosen == ['"not extended"', "extended"]
