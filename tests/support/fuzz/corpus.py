"""Requests worth reusing: one for each outcome that was seen, in a file that grows from run to run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from sys import intern

from support.fuzz.answers import Signature
from support.fuzz.frames import Token

KEPT_PER_KEY = 150
BYTES_MAX = 8192
"""A longer one is not kept: a shorter one will do the same."""


SEEDS = Path(__file__).parent / "seeds.jsonl"
"""A request or two of each API, to begin with."""


class Corpus:
    def __init__(self, *, keeps: bool = True) -> None:
        """Without `keeps` it only reports what is new."""
        self.requests: list[list[Token]] = []
        self._keeps = keeps
        self._number = 0
        self._seen: set[Signature] = set()
        self._per_key: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._number

    @property
    def outcomes(self) -> int:
        return len(self._seen)

    def knows(self, signature: Signature) -> bool:
        return signature in self._seen

    def add(self, signature: Signature, tokens: list[Token]) -> bool:
        """Keep the request if its outcome is new."""
        if signature in self._seen:
            return False
        self._seen.add(signature)
        key = signature[0]
        if self._per_key[key] >= KEPT_PER_KEY or sum(len(token[2]) for token in tokens) > BYTES_MAX:
            return False
        self._per_key[key] += 1
        self._number += 1
        if self._keeps:
            self.requests.append(tokens)
        return True

    # On disk: one request a line

    def load(self, path: Path) -> None:
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            signature, tokens = json.loads(line)
            request = [(intern(kind), intern(field), bytes.fromhex(data)) for kind, field, data in tokens]
            self.add(_tupled(signature), request)

    def append_to(self, path: Path, signature: Signature, tokens: list[Token]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([signature, [(kind, field, data.hex()) for kind, field, data in tokens]]) + "\n")


def _tupled(signature: list[object]) -> Signature:
    return tuple(signature)
