"""Requests transfers between accounts. Usage: request_transfers.py COUNT."""

from __future__ import annotations

import random
import sys

from millpond import Producer

ACCOUNTS = [f"account-{number}" for number in range(10)]


def main(count: int) -> None:
    chance = random.Random(1)
    with Producer() as producer:
        for number in range(count):
            giver, taker = chance.sample(ACCOUNTS, 2)
            transfer = {"id": number, "from": giver, "to": taker, "cents": chance.randrange(1, 10_000)}
            producer.send("transfers", transfer, key=giver)
    print(f"asked for {count} transfers")


if __name__ == "__main__":
    main(int(sys.argv[1]))
