"""The `millpond` command. Each subcommand is a file or a folder of its own, imported only when it is used."""

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
    "cluster": ("millpond.cli.cluster.command", "Several nodes that act as one: run them here, look at any."),
    "config": ("millpond.cli.config.command", "Settings of topics, nodes and groups, and what each means."),
    "console": ("millpond.cli.console", "Topics, records, groups and more in the browser."),
    "status": ("millpond.cli.status", "How nodes, disks and groups are, at a glance; exit code for scripts."),
    "top": ("millpond.cli.top.command", "Topics, groups and nodes, live: rates and lag."),
    "node": ("millpond.cli.node", "The nodes of a cluster: list, describe, drain and remove them."),
    "topic": ("millpond.cli.topic.command", "Create, list, describe, alter, move and delete topics."),
    "produce": ("millpond.cli.produce", "Write lines of a file or of standard input to a topic."),
    "consume": ("millpond.cli.consume", "Print the records of a topic, from anywhere on."),
    "work": ("millpond.cli.work.command", "Run the workers of a module, in processes that are started again."),
    "group": ("millpond.cli.group.command", "Consumer groups: members, lag, offsets, rebalances."),
    "txn": ("millpond.cli.txn", "Transactions: list and describe them, abort one that hangs."),
    "user": ("millpond.cli.user", "Users who log in with a password: add, list, change, remove."),
    "acl": ("millpond.cli.acl", "Who may do what: add, list, change, remove."),
    "quota": ("millpond.cli.quota", "How much users and clients may take: add, list, change, remove."),
    "cert": ("millpond.cli.cert", "An own authority and certificates for TLS: add, list, change, remove."),
    "token": ("millpond.cli.token", "Delegation tokens: add, list, change, remove."),
    "trace": ("millpond.cli.trace.command", "Where a record's time goes, hop by hop, from send to read."),
    "sim": ("millpond.cli.sim", "Watch the engine work and fail in a simulated world; lessons, links."),
    "plan": ("millpond.cli.plan.command", "Storage, bandwidth, brokers and partitions for a workload."),
    "dlq": ("millpond.cli.dlq.command", "Dead letters: list, show, count, redrive and purge them."),
    "pipeline": ("millpond.cli.pipeline.command", "Topics into tables and topics on Spark: run, check, status."),
    "backup": ("millpond.cli.backup", "Copy a node's data while it runs; only what is new since the last time."),
    "restore": ("millpond.cli.restore", "Make a data folder of a backup, or check one."),
    "log": ("millpond.cli.log.command", "Look into the files of a data folder (log dump FILE)."),
    "profile": ("millpond.cli.profile.command", "Names for clusters: add one, then -p NAME."),
    "completion": ("millpond.cli.completion.command", "Let bash, zsh or fish complete commands and names."),
    "help": ("millpond.cli.help.command", "Pages about config, cluster, dlq and more; or a command's --help."),
    "version": ("millpond.cli.version", "Say which version this is, and what it runs on."),
}
"""Each command's module and its line in the overview, which is shown without importing the module."""


class LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is asked for: `--help` and `up` stay quick and small."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing every command for its line."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

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
            # Whoever reads has seen enough, as in `… | head`. click itself would call that a failure.
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
    """Run one command; the process's exit code. 0: done, 2: asked for in a wrong way, 1: anything else."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A sign that the terminal's encoding does not have becomes a question mark, and not the end of the command.
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
    """The reader of our output has gone: what Python still holds for it must not become an error at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
