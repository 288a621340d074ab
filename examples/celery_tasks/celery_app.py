"""Celery with Millpond as its broker, through kombu's transport for Kafka.

The README has the command that runs the worker; `celery_app.py NUMBER…` sends it tasks.
"""

from __future__ import annotations

import os
import sys

from celery import Celery

bootstrap = os.environ.get("MILLPOND_BOOTSTRAP", "127.0.0.1:9092")
app = Celery("celery_app", broker=f"confluentkafka://{bootstrap}/")
app.conf.update(
    broker_transport_options={"allow_create_topics": True},
    broker_connection_retry_on_startup=True,
    # These need a broker that can broadcast to all workers.
    worker_enable_remote_control=False,
    task_ignore_result=True,
)


@app.task(name="celery_app.square")
def square(number: int) -> None:
    print(f"the square of {number} is {number * number}", flush=True)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        square.delay(int(text))
    print(f"{len(sys.argv) - 1} tasks are sent")
