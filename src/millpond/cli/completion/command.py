"""`millpond completion`: the script that a shell reads to complete what is typed."""

from __future__ import annotations

import click

from millpond.cli.errors import Failed

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets the shell complete what is typed.

    It completes commands, options and the names of topics, groups, nodes, profiles and settings. Names
    are asked of the cluster that the line means so far; where none answers within a second nothing is offered.

    \b
    bash (4.4 or newer), in ~/.bashrc:
      eval "$(millpond completion bash)"
    zsh, in ~/.zshrc, after compinit:
      eval "$(millpond completion zsh)"
    fish:
      millpond completion fish > ~/.config/fish/completions/millpond.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise Failed(f"There is no completion for {shell}: there is for {', '.join(SHELLS)}.")
    click.echo(found(context.find_root().command, {}, "millpond", "_MILLPOND_COMPLETE").source(), nl=False)
