"""One of many workers that compete for jobs. Usage: job_worker.py NAME [SECONDS A JOB].

All are in one group, so each partition of the queue belongs to one of them at a time. Start more for more throughput,
up to one per partition; if one stops or is killed, the others take over its unfinished jobs.
"""

from __future__ import annotations

import sys
import time

from millpond import Message, Worker


def main(name: str, seconds: float = 0.1) -> None:
    def work(message: Message) -> None:
        time.sleep(seconds)
        print(f"{name} did job {message.json()['job']}", flush=True)

    # A killed worker is noticed after the session timeout; until then its jobs wait. Unfinished jobs are
    # repeated, so it fetches few at a time.
    Worker(work, "jobs", group="workers", session_timeout_s=6, in_flight_max=4).run()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
