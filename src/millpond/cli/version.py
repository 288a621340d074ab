"""`millpond version`: shows the version, and what it runs on."""

from __future__ import annotations

import platform

import click

from millpond import __version__


@click.command("version")
def command() -> None:
    """Show the version, and what it runs on.

    \b
    Example:
      millpond version
    """
    from confluent_kafka import libversion

    from millpond.wire.kernel import COMPILED

    click.echo(f"Millpond {__version__}")
    click.echo(f"  Python      {platform.python_version()} on {platform.system()} {platform.machine()}")
    click.echo(f"  kernel      {'compiled' if COMPILED else 'plain Python (nothing compiled is installed)'}")
    click.echo(f"  librdkafka  {libversion()[0]}")
