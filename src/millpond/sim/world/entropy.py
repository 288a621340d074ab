"""Randomness from a seed."""

from __future__ import annotations

from random import Random
from uuid import UUID


class SeededEntropy:
    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)
