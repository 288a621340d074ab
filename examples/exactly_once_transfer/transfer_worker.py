"""Turns each transfer into two entries, one for each account: both or neither, and never twice.

Usage: transfer_worker.py

What the handler returns and the position in `transfers` are one transaction. After a crash, the next start aborts the
open transaction (identified by the instance) and continues with the first transfer without entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond import Message, Send, worker


@worker("transfers", group="bookkeeping", delivery="exactly_once", instance="bookkeeper-1", commit_every_s=0.05)
def book(message: Message) -> Iterator[Send]:
    transfer = message.json()
    for account, cents in ((transfer["from"], -transfer["cents"]), (transfer["to"], transfer["cents"])):
        yield Send("entries", {"transfer": transfer["id"], "account": account, "cents": cents}, key=account)


if __name__ == "__main__":
    book.run()
