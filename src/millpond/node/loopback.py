"""A listening socket that only this machine reaches: what the console is served on."""

from __future__ import annotations

import ipaddress
import socket

from millpond.config.node import host_and_port


def open_listener(listen: str) -> socket.socket:
    """ValueError for an address that others could reach: there is no login yet."""
    host, port = host_and_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if host != "localhost" and not _is_loopback(host):
        raise ValueError(
            f"The console has no login yet, so it listens on this machine only: {host} would let others in. "
            "Give --listen 127.0.0.1:8080, and reach it from elsewhere through ssh -L 8080:127.0.0.1:8080."
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
