"""Options that the commands of queues share."""

from __future__ import annotations

from typing import Final

import click

from millpond.cli.completion.names import ShareGroupName

GROUP: Final = click.option(
    "-g",
    "--group",
    metavar="GROUP",
    type=ShareGroupName(),
    help="The share group; needed only if several read TOPIC.",
)
