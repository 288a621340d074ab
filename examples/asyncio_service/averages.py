"""Reads prices and writes the average of the last few of each symbol, in one event loop. Usage: averages.py [COUNT].

With COUNT it exits after this many prices.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict, deque

from millpond import AsyncConsumer, AsyncProducer

WINDOW = 3


async def main(count: int | None) -> None:
    last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
    done = 0
    async with AsyncProducer() as producer, AsyncConsumer("averages", ["prices"]) as consumer:
        async for batch in consumer.batches(100):
            sent = []
            for message in batch:
                price = message.json()
                window = last[price["symbol"]]
                window.append(price["price"])
                average = {"symbol": price["symbol"], "average": sum(window) / len(window)}
                sent.append(await producer.queue("averages", average, key=price["symbol"]))
            # The position is committed after the averages are acknowledged: a crash repeats some and loses none.
            await asyncio.gather(*sent)
            await consumer.commit()
            done += len(batch)
            print(f"{done} prices", flush=True)
            if count is not None and done >= count:
                return


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
