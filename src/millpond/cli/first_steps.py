"""The first commands to try on a new node."""

from __future__ import annotations

from millpond.cli.terminal import Row


def first_steps(at: str, option: str, partitions: str = "") -> list[Row]:
    """For a node without a login."""
    return [
        ("topic", f"millpond topic create orders{partitions}{option}"),
        ("kcat", f"kcat -b {at} -L"),
        ("python", f'Producer({{"bootstrap.servers": "{at}"}})'),
    ]
