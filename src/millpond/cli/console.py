"""`millpond console`: the console in the foreground, beside any cluster. The process becomes the console's own."""

from __future__ import annotations

import json
import os
import sys

import click

from millpond.cli.access import Access, cluster_options
from millpond.cli.console_process import CLIENT_SETTINGS, DEFAULT, PROGRAM, missing_packages
from millpond.cli.errors import Failed
from millpond.cli.options import option


@click.command("console")
@option("--listen", meta="HOST:PORT", default=DEFAULT, help="Where browsers connect.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@cluster_options
def command(listen: str, read_only: bool, access: Access) -> None:
    """Serve the console: topics, records, groups and more in the browser, for any Kafka cluster.

    It listens on this machine only, because it has no login yet. From elsewhere:
    ssh -L 8080:127.0.0.1:8080 THIS-MACHINE

    \b
    Examples:
      millpond console
      millpond console --bootstrap 10.0.0.1:9092 --read-only
      millpond console --listen 127.0.0.1:9000
    """
    if missing := missing_packages():
        raise Failed(f"The console needs {' and '.join(missing)}: install with `pip install {' '.join(missing)}`.")
    listen = f"127.0.0.1:{listen}" if listen.isdigit() else listen
    words = [*PROGRAM, "--bootstrap", access.bootstrap, "--listen", listen, *(["--read-only"] if read_only else [])]
    # Passwords may be among them: other users see the words of a process, and not what is around it.
    os.execve(sys.executable, words, {**os.environ, CLIENT_SETTINGS: json.dumps(dict(access.extras))})
