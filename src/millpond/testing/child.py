"""The program of a child node: prints `ready` and its port, and exits when its parent is gone."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from millpond.broker.broker import Broker
from millpond.config.node import node_settings
from millpond.node.journal import LineJournal
from millpond.node.serve import serve


def main(arguments: Sequence[str]) -> None:
    """Settings come as NAME=VALUE."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    texts = dict(each.split("=", 1) for each in arguments)
    serve(node_settings(texts), LineJournal(), _tell)


def _tell(broker: Broker) -> None:
    print("ready", broker.address[1], flush=True)


def _end_with_parent() -> None:
    """The parent holds the other end of our standard input and never writes: EOF means that it died."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
