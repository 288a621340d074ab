"""The `millpond` command. Each subcommand is a module or package, imported only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

import click

from millpond import __version__
from millpond.cli.profile.name import ProfileName

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXAMPLES: Final = """\
\b
Try it in two terminals:
  millpond up                              a node; data in ./millpond-data
  millpond topic create orders --partitions 3
  echo tea:2 | millpond produce orders --key-separator :
  millpond consume orders --keys           Ctrl-C ends it
"""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "up": ("millpond.cli.up", "Run a node in the foreground."),
    "cluster": ("millpond.cli.cluster.command", "Run a cluster on this machine; inspect or change any cluster."),
    "config": ("millpond.cli.config.command", "Settings of topics, nodes and groups: list, get, set, unset."),
    "console": ("millpond.cli.console", "Topics, records, groups and more in the browser."),
    "status": ("millpond.cli.status", "Health of nodes, disks and groups; exit code for scripts."),
    "top": ("millpond.cli.top.command", "Live rates and lag of topics, groups and nodes."),
    "node": ("millpond.cli.node", "The nodes of a cluster: list, describe, drain and remove them."),
    "topic": ("millpond.cli.topic.command", "Create, list, describe, alter, move and delete topics."),
    "produce": ("millpond.cli.produce", "Write the lines of a file or of standard input to a topic."),
    "consume": ("millpond.cli.consume", "Print the records of a topic, from any point on."),
    "sql": ("millpond.cli.sql.command", "Query topics, group lag, dead letters and files with SQL."),
    "work": ("millpond.cli.work.command", "Run the workers of a module, in supervised processes."),
    "group": ("millpond.cli.group.command", "Consumer groups: members, lag, offsets, rebalances."),
    "queue": ("millpond.cli.queue.command", "Work queues: send, receive, peek, describe, purge, redrive."),
    "txn": ("millpond.cli.txn", "Transactions: list and describe them, abort one that hangs."),
    "user": ("millpond.cli.user", "Users with passwords: add, list, change, remove."),
    "acl": ("millpond.cli.acl", "Access control lists: add, list, change, remove."),
    "quota": ("millpond.cli.quota", "Quotas of users, clients and addresses: add, list, change, remove."),
    "cert": ("millpond.cli.cert", "A private authority and TLS certificates: add, list, change, remove."),
    "token": ("millpond.cli.token", "Delegation tokens: add, list, change, remove."),
    "trace": ("millpond.cli.trace.command", "Where a record spends its time, hop by hop, from send to read."),
    "sim": ("millpond.cli.sim", "Watch the engine work and fail in a simulated world: lessons, links."),
    "plan": ("millpond.cli.plan.command", "Size a cluster: storage, bandwidth, brokers and partitions."),
    "dlq": ("millpond.cli.dlq.command", "Dead letters: list, show, count, redrive and purge them."),
    "pipeline": ("millpond.cli.pipeline.command", "Spark jobs from topics to tables and topics: run, check, status."),
    "backup": ("millpond.cli.backup", "Copy a node's data while it runs; incremental."),
    "restore": ("millpond.cli.restore", "Restore a data folder from a backup, or verify the backup."),
    "log": ("millpond.cli.log.command", "Inspect the files of a data folder (log dump FILE)."),
    "profile": ("millpond.cli.profile.command", "Names for clusters: add one, then -p NAME."),
    "completion": ("millpond.cli.completion.command", "Let bash, zsh or fish complete commands and names."),
    "help": ("millpond.cli.help.command", "Pages about config, cluster, dlq and more, or a command's --help."),
    "version": ("millpond.cli.version", "Show the version, and what it runs on."),
}
"""Each command's module and its line in the overview, which is shown without importing the module."""


class LazyGroup(click.Group):
    """Imports a command only when it is used: `--help` and `up` stay quick and small."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            from millpond.base.names import nearest

            ctx.fail(f"There is no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has closed the pipe, as in `… | head`. click would treat that as a failure.
            forget_output()
            return 0


@click.command(
    cls=LazyGroup,
    epilog=EXAMPLES + "\nEvery command explains itself, with an example: millpond COMMAND --help",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="Millpond", message="%(prog)s %(version)s")
@click.option("-p", "--profile", metavar="NAME", type=ProfileName(), help="The cluster of this `millpond profile`.")
def command(profile: str | None) -> None:
    """A log-based message queue that speaks the Kafka protocol.

    Commands that talk to a node take --bootstrap HOST:PORT (or MILLPOND_BOOTSTRAP), or a profile, and work against
    any Kafka cluster.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 for success, 2 for a usage error, 1 for any other failure."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A character that the terminal's encoding lacks becomes a question mark instead of an exception.
        sys.stdout.reconfigure(errors="replace")
    try:
        result = command.main(arguments, prog_name="millpond", standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def forget_output() -> None:
    """The reader of our output is gone: buffered output must not cause an error at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
