"""What to do first with a node that has just started."""

from __future__ import annotations

from millpond.cli.terminal import Row


def first_steps(at: str, option: str, partitions: str = "") -> list[Row]:
    """What to do with a node that has no login."""
    return [
        ("topic", f"millpond topic create orders{partitions}{option}"),
        ("kcat", f"kcat -b {at} -L"),
        ("python", f'Producer({{"bootstrap.servers": "{at}"}})'),
    ]
