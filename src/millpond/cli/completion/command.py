"""`millpond completion`: prints the completion script of a shell."""

from __future__ import annotations

import click

from millpond.cli.errors import Failed

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options and the names of topics, groups, nodes, profiles and settings. Names come from the
    cluster of the command line; if that does not answer within a second, nothing is offered.

    \b
    bash (4.4 or newer), in ~/.bashrc:
      eval "$(millpond completion bash)"
    zsh, in ~/.zshrc, after compinit:
      eval "$(millpond completion zsh)"
    fish:
      millpond completion fish > ~/.config/fish/completions/millpond.fish
    """
    from click.shell_completion import get_completion_class

    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise Failed(f"There is no completion for {shell}: there is for {', '.join(SHELLS)}.")
    click.echo(shell_class(context.find_root().command, {}, "millpond", "_MILLPOND_COMPLETE").source(), nl=False)
