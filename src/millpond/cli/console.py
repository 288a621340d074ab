"""`millpond console`: the console of any cluster, in the foreground. It replaces this process."""

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
@click.option(
    "--password-file", metavar="FILE", help="Its first line is the password; needed if others can reach it."
)
@click.option("--name", "names", metavar="NAME", multiple=True, help="A host name that browsers may use.")
@click.option("--pipelines", metavar="FOLDER", help="The folder of the pipelines' state.")
@cluster_options
def command(
    listen: str,
    read_only: bool,
    password_file: str | None,
    names: tuple[str, ...],
    pipelines: str | None,
    access: Access,
) -> None:
    """Serve the console: topics, records, groups and more in the browser, for any Kafka cluster.

    Without a password it listens on this machine only. To reach it from elsewhere: ssh -L 8080:127.0.0.1:8080
    THIS-MACHINE. With a password it may listen anywhere; put a TLS proxy in front of it, because it does not encrypt.

    \b
    Examples:
      millpond console
      millpond console --bootstrap 10.0.0.1:9092 --read-only
      millpond console --listen 127.0.0.1:9000
      millpond console --listen 0.0.0.0:8080 --password-file secret.txt --name queue.example.org
    """
    if missing := missing_packages():
        raise Failed(f"The console needs {' and '.join(missing)}: install with `pip install {' '.join(missing)}`.")
    listen = f"127.0.0.1:{listen}" if listen.isdigit() else listen
    words = [*PROGRAM, "--bootstrap", access.bootstrap, "--listen", listen, *(["--read-only"] if read_only else [])]
    words += [f"--password-file={password_file}"] if password_file is not None else []
    words += [f"--name={name}" for name in names]
    words += [f"--pipelines={pipelines}"] if pipelines is not None else []
    # In the environment, because there may be passwords: other users can see the command line of a process.
    os.execve(sys.executable, words, {**os.environ, CLIENT_SETTINGS: json.dumps(dict(access.extras))})
