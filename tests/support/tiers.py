"""Which command runs a test: `make test`, `make test-all` or `make chaos`.

| Command | Runs | On two cores, at most |
|---|---|---|
| `make test` | tests that stay inside the test process, and boundary tests marked `smoke` | 8 minutes |
| `make test-all` | the others, which are marked `extended`: boundary tests, and tests marked `slow` | 20 minutes |
| `make chaos` | tests marked `with_time`, and campaigns | hours |

The first two print at their end how much processor time they took, beside their budget in the Makefile.

A boundary test needs another process: a node, a browser, Spark, Apache Kafka, the command line. The tests of
some folders all do; elsewhere a test is recognised by its fixtures, or carries the mark `boundary` itself.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

BOUNDARY_FOLDERS = frozenset({"clients", "cluster", "deploy", "dist", "examples"})
"""Every test below these folders of `tests` is a boundary test."""

BOUNDARY_FIXTURES = frozenset({"node", "make_node", "raw", "spark", "kafka"})
"""Fixtures that start processes, in every folder."""

BOUNDARY_FIXTURES_OF = {
    "cli": frozenset({"lonely", "start_node"}),
    "client": frozenset({"broker", "child", "cluster", "mock", "redis_url"}),
    "console": frozenset({"browser", "console"}),
    "docs": frozenset({"millpond_shared", "make_millpond"}),
}
"""Fixtures that start processes, or drive librdkafka against a node, in one folder alone."""


def fixtures_of(item: pytest.Item) -> set[str]:
    """The fixtures of a test. Its own parameters may have the name of one and are none."""
    parameters: set[str] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        parameters.update(names.replace(",", " ").split() if isinstance(names, str) else names)
    return set(getattr(item, "fixturenames", ())) - parameters


def is_boundary(folder: str, fixtures: Collection[str], marks: Collection[str]) -> bool:
    """Whether a test of this folder (the one right below `tests`) is a boundary test."""
    if folder in BOUNDARY_FOLDERS or "boundary" in marks:
        return True
    return not BOUNDARY_FIXTURES_OF.get(folder, frozenset()).union(BOUNDARY_FIXTURES).isdisjoint(fixtures)


def is_extended(folder: str, fixtures: Collection[str], marks: Collection[str]) -> bool:
    """Whether `make test-all` runs this test, and `make test` does not."""
    return "smoke" not in marks and ("slow" in marks or is_boundary(folder, fixtures, marks))
