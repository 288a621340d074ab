"""The write side: every change of a product is a record, with the product as the key.

Usage: catalogue.py set ID NAME CENTS
       catalogue.py drop ID
       catalogue.py season COUNT [SEED]       this many random changes
"""

from __future__ import annotations

import random
import sys

from millpond import Producer

PRODUCTS = "products"


def season(producer: Producer, count: int, seed: int = 0) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        product = f"product-{chance.randrange(40)}"
        if chance.random() < 0.2:
            producer.send(PRODUCTS, None, key=product)
        else:
            name = f"{chance.choice(['red', 'blue', 'green'])} {product}"
            producer.send(PRODUCTS, {"name": name, "cents": chance.randrange(100, 10_000)}, key=product)


def main(*arguments: str) -> None:
    with Producer() as producer:
        match arguments:
            case "set", product, name, cents:
                producer.send(PRODUCTS, {"name": name, "cents": int(cents)}, key=product)
            case "drop", product:
                # A record without a value: compaction drops the key, a view deletes the row.
                producer.send(PRODUCTS, None, key=product)
            case "season", *numbers:
                season(producer, *map(int, numbers))
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
