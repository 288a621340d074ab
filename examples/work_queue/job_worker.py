"""One of many workers that compete for jobs. Usage: job_worker.py NAME [SECONDS A JOB].

All have one group, so each partition of the queue belongs to one of them at a time. Start more to be quicker, up to
one for each partition; stop or kill any, and the others take over what it had not finished.
"""

from __future__ import annotations

import sys
import time

from millpond import Message, Worker


def main(name: str, seconds: float = 0.1) -> None:
    def work(message: Message) -> None:
        time.sleep(seconds)
        print(f"{name} did job {message.json()['job']}", flush=True)

    # A worker that is killed is missed after the session's time; until then its jobs wait. What it had taken and not
    # finished is done again, so it takes little at a time.
    Worker(work, "jobs", group="workers", session_timeout_s=6, in_flight_max=4).run()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
