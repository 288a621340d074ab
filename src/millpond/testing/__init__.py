"""A real broker for tests: in the test's own process or as a child, with faults on demand. See docs/testing.md.

pytest imports this in every run of every project that has Millpond installed, so the heavy parts come when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.testing.pond import Mode, Pond, TooFew

__all__ = ["Mode", "Pond", "TooFew"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from millpond.testing import pond

        return getattr(pond, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
