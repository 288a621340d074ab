"""Ports of this machine for several nodes that one command starts."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import click

from millpond.cli.addresses import shown_address
from millpond.cli.errors import Failed, cause


def free_ports(host: str, first: int, count: int, who: str) -> list[int]:
    """Consecutive ports from `first` on, or any free ones for port 0. Raises Failed if one of them is taken."""
    if first + count - 1 > 65535:
        raise click.UsageError(f"--listen {shown_address(host, first)}: there are no {count} ports from {first} on.")
    ports = []
    # All are open at once, so that no two nodes get the same one.
    with ExitStack() as probes:
        for number in range(count):
            port = first + number if first else 0
            probe = probes.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                # With SO_REUSEADDR, a port that another process listens on could be bound.
                probe.listen()
            except socket.gaierror:
                raise Failed(f"The host name {host} is unknown: give --listen an address of this machine.") from None
            except OSError as error:
                raise Failed(
                    f"{shown_address(host, port)} cannot be listened on ({cause(error)}): "
                    f"{who} takes {count} ports from --listen HOST:PORT on; name others."
                ) from None
            ports.append(probe.getsockname()[1])
    return ports
