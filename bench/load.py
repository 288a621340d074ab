"""The client process: `python -m bench.load NAME JSON` gets ready, then runs one slice for every line it is given."""

from __future__ import annotations

import json
import sys
from typing import Protocol

from bench.load_raw import FetchLarge, Idle, Measured, ProduceLarge, ProduceOne, ProducePaced, Spread


class Load(Protocol):
    def run(self, seconds: float) -> Measured: ...


RAW: dict[str, type[Load]] = {
    each.__name__: each for each in (FetchLarge, Idle, ProduceLarge, ProduceOne, ProducePaced, Spread)
}


def load_class(name: str) -> type[Load]:
    if name in RAW:
        return RAW[name]
    from bench import load_confluent

    found: type[Load] = getattr(load_confluent, name)
    return found


def main() -> None:
    name, arguments = sys.argv[1:]
    load = load_class(name)(**json.loads(arguments))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(load.run(float(line))), flush=True)
    close = getattr(load, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    main()
