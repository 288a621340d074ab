"""What a service manager is told: that the node is ready, and that it is about to end (sd_notify, by hand).

systemd names a socket in `NOTIFY_SOCKET` for a unit of `Type=notify`, and takes lines of NAME=VALUE there. Elsewhere
nobody listens, and nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import socket


def tell_manager(*lines: str) -> None:
    """It never waits, and a manager that does not listen is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto("\n".join(lines).encode(), address)
