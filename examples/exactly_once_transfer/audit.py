"""Adds up all committed entries, and prints the result as JSON.

Usage: audit.py [--uncommitted]        with it: also entries of aborted transactions
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from millpond import Consumer


def main(*options: str) -> None:
    balances: Counter[str] = Counter()
    entries: Counter[int] = Counter()
    careless = "--uncommitted" in options
    with Consumer(topics=["entries"], isolation="read_uncommitted" if careless else "read_committed") as consumer:
        while batch := consumer.poll(timeout_s=1.5):
            for message in batch:
                entry = message.json()
                balances[entry["account"]] += entry["cents"]
                entries[entry["transfer"]] += 1
    found = {
        "transfers": len(entries),
        "not_two_entries": sum(count != 2 for count in entries.values()),
        "total_cents": sum(balances.values()),
        "balances": dict(sorted(balances.items())),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
