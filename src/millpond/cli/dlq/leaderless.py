"""A warning about letters that cannot be read now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

PARTITIONS_NAMED_MAX: Final = 10


def say_unread(topic: str, leaderless: Sequence[int]) -> None:
    """Warns that partitions without a leader are left out."""
    if leaderless:
        named = ", ".join(map(str, leaderless[:PARTITIONS_NAMED_MAX]))
        left = len(leaderless) - PARTITIONS_NAMED_MAX
        more = f" and {left:,} more" if left > 0 else ""
        click.echo(f"Partition {named}{more} of {topic} has no leader: its letters are left out.", err=True)
