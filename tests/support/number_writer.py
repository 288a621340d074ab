"""A kafka-python producer in a separate process: writes numbers until its input ends, prints what was acknowledged.

python number_writer.py bootstrap topic partitions name pause-ms
"""

from __future__ import annotations

import sys
import threading
import time

from kafka import KafkaProducer

LINGER_MS = 2
FLUSH_SECONDS = 120


def main(bootstrap: str, topic: str, partitions: int, name: str, pause_ms: int) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    telling = threading.Lock()

    def tell(text: str) -> None:
        with telling:
            print(text, flush=True)

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        request_timeout_ms=4000,
        delivery_timeout_ms=FLUSH_SECONDS * 1000,
        max_block_ms=FLUSH_SECONDS * 1000,
        retry_backoff_ms=50,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
    )
    number = 0
    while not over.is_set():
        sent = producer.send(topic, b"%s:%d" % (name.encode(), number), partition=number % partitions)
        sent.add_callback(lambda found, at=number: tell(f"acked {found.partition} {found.offset} {at}"))
        sent.add_errback(lambda fault, at=number: tell(f"failed {at} {fault!r}"))
        number += 1
        time.sleep(pause_ms / 1000)
    producer.flush(FLUSH_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
