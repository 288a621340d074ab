"""Asks for sums and waits for the answers. Usage: ask.py NUMBER... [--slowly SECONDS] [--timeout SECONDS]."""

from __future__ import annotations

import sys
import time
from typing import Any
from uuid import uuid4

from millpond import Consumer, Producer

REQUESTS, REPLIES = "requests", "replies"


class Asker:
    """Reads one partition of the topic of replies, maybe with others, and recognizes its answers by their id."""

    def __init__(self, partition: int = 0) -> None:
        self._producer = Producer(linger_ms=0)
        self._partition = partition
        # An empty record marks our position in the log: every answer to us comes after it.
        place = self._producer.send(REPLIES, None, partition=partition).result(10)
        self._consumer = Consumer(topics=[REPLIES], from_=place.timestamp_ms)

    def ask(self, request: Any, timeout_s: float = 5.0) -> Any:
        """The answer; after a TimeoutError the request may still have been processed."""
        correlation = uuid4().hex
        headers = {"correlation-id": correlation, "reply-to": REPLIES, "reply-partition": str(self._partition)}
        self._producer.send(REQUESTS, request, headers=headers)
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            message = self._consumer.next(left)
            # Ignore answers to others, and late ones.
            if message is not None and message.header("correlation-id") == correlation.encode():
                return message.json()
        raise TimeoutError(f"no answer within {timeout_s:g} s")

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


def main(*arguments: str) -> None:
    numbers, options = [], {"--slowly": 0.0, "--timeout": 5.0}
    words = iter(arguments)
    for word in words:
        if word in options:
            options[word] = float(next(words))
        else:
            numbers.append(int(word))
    asker = Asker()
    try:
        for request in ({"add": numbers, "slowly": options["--slowly"]}, {"add": [*numbers, 1]}):
            try:
                print(asker.ask(request, options["--timeout"])["sum"], flush=True)
            except TimeoutError as late:
                print(late, flush=True)
    finally:
        asker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
