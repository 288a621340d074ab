"""Fixtures of all tests: real nodes, and names that no other test uses."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import hypothesis
import pytest

# Test files are imported by path, so what they share must be found by name.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent))  # for `bench`

from support import patience, seeds, tiers
from support.exit_report import ExitReport
from support.file_times import FileTimes
from support.node import Node
from support.raw import Raw

# The same run each time, and no clock in it, as a machine may be slow. HYPOTHESIS_PROFILE=explore looks further.
hypothesis.settings.register_profile("house", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "explore" if seeds.GIVEN else "house"))
if seeds.GIVEN:
    hypothesis.core.global_force_seed = seeds.FIRST

# Hundreds of processes are started: each would compile all of the house anew where the machine keeps no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Many nodes start at once: none of them has a console unless its test asks for one.
os.environ["MILLPOND_CONSOLE"] = "off"

# Tests are short: compiling Java less well, and on one thread, halves what a session of Spark costs.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SPARKS_AT_ONCE = 2
"""A process of Python that Spark starts has ten seconds to call back: three sessions on two cores were too many."""

_numbers = count(1)


def pytest_configure(config: pytest.Config) -> None:
    """What a client library does behind our back is not news."""
    config.addinivalue_line("filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning")
    config.pluginmanager.register(FileTimes())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ExitReport())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector: thousands of tests are made, and all of them stay until the end. Later
    collections need not look at them either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of one file that run Spark or the console run in one process: what they share is dear to start. Of
    Spark no more than two run at a time, and those of `make test` share one. Long tests have to be asked for. `tiers`
    says what `make test` leaves out."""
    spark_files: dict[str, int] = {}
    for item in items:
        path = item.path.as_posix()
        folder = path.rpartition("/tests/")[2].partition("/")[0]
        fixtures, marks = tiers.fixtures_of(item), {mark.name for mark in item.iter_markers()}
        if tiers.is_extended(folder, fixtures, marks):
            item.add_marker("extended")
        if folder == "spark" and ("slow" in marks or tiers.is_boundary(folder, fixtures, marks)):
            number = 0 if "smoke" in marks else spark_files.setdefault(path, len(spark_files))
            item.add_marker(pytest.mark.xdist_group(f"spark-{number % SPARKS_AT_ONCE}"))
        elif "/tests/console/" in path:
            item.add_marker(pytest.mark.xdist_group(path.rpartition("/tests/")[2]))
        if item.get_closest_marker("with_time") and not patience.ALL:
            item.add_marker(pytest.mark.skip(reason="takes a while: make chaos runs it"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    seeds.played.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails says which dice it had."""
    report = yield
    if report.failed:
        again = seeds.played[-1] if seeds.played else seeds.FIRST
        report.sections.append(("Seed", f"play it again with MILLPOND_SEED={again}"))
    return report


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests of a module that do not harm it, with the module's `SETTINGS` if it has some."""
    settings = getattr(request.module, "SETTINGS", None)
    running = Node(tmp_path_factory.mktemp("node"), settings).start()
    yield running
    running.kill9()


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts fresh nodes with given settings; all of them end with the test."""
    made: list[Node] = []

    def make(settings: dict[str, str] | None = None, *, start: bool = True, **options: object) -> Node:
        fresh = Node(tmp_path / f"node-{len(made)}", settings, **options)  # type: ignore[arg-type]
        made.append(fresh)
        return fresh.start() if start else fresh

    yield make
    for each in made:
        each.kill9()


@pytest.fixture
def raw(node: Node) -> Iterator[Raw]:
    """A connection to the shared node."""
    with Raw(node.port) as connection:
        yield connection


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for a topic of this test alone."""
    return f"pond-{next(_numbers)}"
