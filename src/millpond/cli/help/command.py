"""`millpond help`: shows a page of the docs in the terminal, or the help of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from millpond.cli.errors import Failed
from millpond.cli.help.pages import OTHER_NAMES, Page, read_pages
from millpond.cli.options import AS_JSON
from millpond.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str | CompletionItem]:
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    names = {*read_pages(), *OTHER_NAMES, *root.list_commands(ctx)}
    return [each for each in sorted(names) if each.startswith(incomplete)]


@click.command("help")
@click.argument("words", metavar="[TOPIC|COMMAND]...", nargs=-1, shell_complete=_complete)
@AS_JSON
@click.pass_context
def command(context: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Read a page about TOPIC, or the help of a COMMAND; without either, list the topics.

    On a terminal the page is formatted and shown in the pager (PAGER); in a pipe it is plain text.

    \b
    Examples:
      millpond help
      millpond help config
      millpond help topic alter
    """
    pages = read_pages()
    if not words:
        _list(pages, as_json)
        return
    name = "-".join(words).lower()
    name = OTHER_NAMES.get(name, name)
    if name in pages:
        _show(pages[name], as_json)
        return
    root = context.find_root()
    help_text = _command_help(root, words)
    if help_text is None:
        from millpond.base.names import nearest

        assert isinstance(root.command, click.Group)
        names = {*pages, *OTHER_NAMES, *root.command.list_commands(root)}
        text = " ".join(words)
        raise Failed(f"There is no topic or command {text!r}{nearest(text, names)} `millpond help` lists the topics.")
    if as_json:
        raise click.UsageError("--json is for topics; a command's help is for people.")
    click.echo(help_text)


def _list(pages: dict[str, Page], as_json: bool) -> None:
    topics = list(pages.values())
    if as_json:
        print_json([{"topic": each.name, "title": each.title} for each in topics])
        return
    if not topics:
        raise Failed("The pages are not installed; every command has --help.")
    print_table(("Topic", "About"), [(each.name, each.title) for each in topics], words=2)
    click.echo("\nmillpond help TOPIC shows one; millpond COMMAND --help explains a command.", err=True)


def _show(page: Page, as_json: bool) -> None:
    if as_json:
        print_json({"topic": page.name, "title": page.title, "text": page.text})
    elif sys.stdout.isatty():
        # As git does: without -R, less shows the escape codes of colours.
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(_set(page.text), color=True)
    else:
        click.echo(_set(page.text), nl=False)


def _set(text: str) -> str:
    """The page, formatted for a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as captured:
        console.print(Markdown(text, hyperlinks=False), width=min(console.width, 100))
    return captured.get()


def _command_help(root: click.Context, words: Sequence[str]) -> str | None:
    """The output of `millpond WORDS --help`; None if there is no such command."""
    context = root
    for word in words:
        group = context.command
        subcommand = group.get_command(context, word) if isinstance(group, click.Group) else None
        if subcommand is None:
            return None
        context = click.Context(subcommand, info_name=word, parent=context)
    return context.command.get_help(context)
