"""The pytest plugin, loaded by its entry point: fixtures for a broker (`millpond`) and a cluster (`millponds`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millpond.testing import Pond, PondNode, Ponds

MARKER = 'millpond(mode="thread"|"process", settings={}, secure=False): how the fixture `millpond` is started.'
CLUSTER_MARKER = "millponds(nodes=3, settings={}, secure=False): how the fixture `millponds` is started."
MODES = ("thread", "process")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "millpond_mode", 'How brokers for tests run: "thread" (in this process) or "process".', default="thread"
    )
    parser.getgroup("millpond").addoption(
        "--millpond-mode", choices=MODES, help="How brokers for tests run; goes before millpond_mode of the ini file."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", CLUSTER_MARKER)


def _make(config: pytest.Config, **options: object) -> Pond:
    from millpond.testing import Pond

    options.setdefault("mode", config.getoption("--millpond-mode") or config.getini("millpond_mode"))
    if options["mode"] not in MODES:
        raise pytest.UsageError(f"millpond_mode is {options['mode']!r}; it can be {' or '.join(MODES)}.")
    return Pond(**options)  # type: ignore[arg-type]


@pytest.fixture
def make_millpond(request: pytest.FixtureRequest) -> Iterator[Callable[..., Pond]]:
    """Starts brokers, `make_millpond(mode=…, settings={…})`, which end with the test."""
    made: list[Pond] = []
    # A failing test shows what its brokers reported.
    request.node.stash[_PONDS] = made

    def make(**options: object) -> Pond:
        made.append(_make(request.config, **options))
        return made[-1].start()

    yield make
    for pond in made:
        pond.close()


@pytest.fixture
def millpond(request: pytest.FixtureRequest, make_millpond: Callable[..., Pond]) -> Pond:
    """A broker for this test alone; the marker `millpond` sets its options."""
    marker = request.node.get_closest_marker("millpond")
    return make_millpond(**(marker.kwargs if marker else {}))


@pytest.fixture(scope="session")
def millpond_shared(request: pytest.FixtureRequest) -> Iterator[Pond]:
    """One broker shared by tests that do not disrupt it; `new_topic()` keeps them apart."""
    with _make(request.config) as pond:
        yield pond


@pytest.fixture
def millponds(request: pytest.FixtureRequest) -> Iterator[Ponds]:
    """A cluster of three nodes for this test alone; the marker `millponds` sets its options."""
    from millpond.testing import Ponds

    marker = request.node.get_closest_marker("millponds")
    cluster = Ponds(**(marker.kwargs if marker else {}))
    request.node.stash[_CLUSTER] = list(cluster)
    with cluster:
        yield cluster


_PONDS = pytest.StashKey[list["Pond"]]()
_CLUSTER = pytest.StashKey[list["PondNode"]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for pond in item.stash.get(_PONDS, []):
            if pond.journal:
                report.sections.append((f"millpond {pond.bootstrap}", "\n".join(pond.journal)))
        for node in item.stash.get(_CLUSTER, []):
            if node.journal:
                report.sections.append((f"millpond node {node.node_id}", "\n".join(node.journal)))
    return report
