"""Tells a service manager that the node is ready, and that it is about to stop (sd_notify).

systemd sets a socket in `NOTIFY_SOCKET` for a unit of `Type=notify`, and reads NAME=VALUE lines from it. Elsewhere
this does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket


def tell_manager(*lines: str) -> None:
    """Never blocks, and ignores errors."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.sendto("\n".join(lines).encode(), address)
