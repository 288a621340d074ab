"""Answers requests. Usage: calculator.py.

The headers of a request have the reply topic and partition, and the correlation id.
"""

from __future__ import annotations

import time

from millpond import Message, Send, worker


@worker("requests", group="calculators", concurrency=4, commit_every_s=0.05)
def answer(message: Message) -> Send | None:
    wanted = message.json()
    reply_to, partition = message.header("reply-to"), message.header("reply-partition")
    if reply_to is None or partition is None:
        return None
    time.sleep(wanted.get("slowly", 0))
    headers = {"correlation-id": message.header("correlation-id")}
    return Send(reply_to.decode(), {"sum": sum(wanted["add"])}, headers=headers, partition=int(partition))


if __name__ == "__main__":
    answer.run()
