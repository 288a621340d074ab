"""Puts jobs into the queue. Usage: enqueue.py COUNT [FIRST]."""

from __future__ import annotations

import sys

from millpond import Producer


def main(count: int, first: int = 0) -> None:
    # Round robin over all partitions, so that every worker gets its share.
    with Producer(partitioner="round_robin") as producer:
        for number in range(first, first + count):
            producer.send("jobs", {"job": number})
    print(f"{count} jobs wait")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
