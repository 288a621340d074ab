"""A real broker for tests: in the test's own process or as a child, with faults on demand. See docs/testing.md.

pytest imports this in every run of every project that has Millpond installed, so the heavy parts come when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.testing.clients import TooFew
    from millpond.testing.cluster import PondNode, Ponds, ponds
    from millpond.testing.pond import Mode, Pond
    from millpond.testing.simulation import SimulatedClient, SimulatedCluster, simulated

__all__ = [
    "Mode",
    "Pond",
    "PondNode",
    "Ponds",
    "SimulatedClient",
    "SimulatedCluster",
    "TooFew",
    "ponds",
    "simulated",
]

_FILES = {
    "Mode": "pond",
    "Pond": "pond",
    "PondNode": "cluster",
    "Ponds": "cluster",
    "SimulatedClient": "simulation",
    "SimulatedCluster": "simulation",
    "TooFew": "clients",
    "ponds": "cluster",
    "simulated": "simulation",
}


def __getattr__(name: str) -> object:
    if name in _FILES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
