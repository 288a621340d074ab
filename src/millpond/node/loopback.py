"""The console's listening socket: loopback only, unless there is a login."""

from __future__ import annotations

import socket

from millpond.config.node import host_and_port, is_loopback


def open_listener(listen: str, *, has_login: bool = False) -> socket.socket:
    """ValueError for an address that others can reach, without a login."""
    host, port = host_and_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not has_login and not is_loopback(host):
        raise ValueError(
            f"Without a login the console listens on this machine only: {host} would let others in. "
            "Give a login with --password-file FILE; or give --listen 127.0.0.1:8080, and reach it from elsewhere "
            "through ssh -L 8080:127.0.0.1:8080."
        )
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
