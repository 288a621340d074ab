"""Where the dice of random tests come from: MILLPOND_SEED. A test that fails prints the one that plays it again.

Tests that go through the same seeds each time (`seeds`, `dice`) count them from MILLPOND_SEED, 0 unless it is given:
with another number they look elsewhere. Tests that want new dice each time (`fresh_seed`) take the number itself.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

GIVEN = os.environ.get("MILLPOND_SEED")
FIRST = int(GIVEN or 0)

played: list[int] = []
"""What would play the running test again; `tests/conftest.py` empties it before each."""


def seeds(usual: Iterable[int]) -> list[int]:
    """The usual seeds of a test, counted from MILLPOND_SEED."""
    return [FIRST + each for each in usual]


def dice(usual: int) -> random.Random:
    """Dice that fall in the same way each time, unless MILLPOND_SEED says otherwise."""
    return random.Random(FIRST + usual)


def fresh_seed() -> int:
    """MILLPOND_SEED, or a number that nobody has seen."""
    seed = int(GIVEN) if GIVEN else random.SystemRandom().randrange(1, 1 << 30)
    played.append(seed)
    return seed
