"""Seeds of random tests, from MILLPOND_SEED. A failing test prints the one that reproduces it.

Tests that use the same seeds each time (`seeds`, `dice`) count them from MILLPOND_SEED, by default 0: another number
covers other cases. Tests that want a new seed each time (`fresh_seed`) take the number itself.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

GIVEN = os.environ.get("MILLPOND_SEED")
FIRST = int(GIVEN or 0)

played: list[int] = []
"""The seeds that reproduce the running test; `tests/conftest.py` clears the list before each."""


def seeds(usual: Iterable[int]) -> list[int]:
    """The usual seeds of a test, counted from MILLPOND_SEED."""
    return [FIRST + each for each in usual]


def dice(usual: int) -> random.Random:
    """A generator with the same sequence each time, unless MILLPOND_SEED changes it."""
    return random.Random(FIRST + usual)


def fresh_seed() -> int:
    """MILLPOND_SEED, or a random number."""
    seed = int(GIVEN) if GIVEN else random.SystemRandom().randrange(1, 1 << 30)
    played.append(seed)
    return seed
