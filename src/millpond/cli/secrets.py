"""Passwords on their way in: asked for, or read from a file or a pipe, and never from the command line."""

from __future__ import annotations

import sys

import click

from millpond.cli.errors import Failed, cause


def ask_password(what: str, file: str | None = None) -> str:
    """The first line of the file; else of a question that shows nothing; else of standard input.

    A command line is no place for it: every user of a machine sees those of all others (`ps`).
    """
    if file is not None:
        try:
            with open(file, encoding="utf-8") as lines:
                password = lines.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"--password-file {file} cannot be read: {cause(error)}.") from None
    elif sys.stdin.isatty():
        password = str(click.prompt(what, hide_input=True, confirmation_prompt=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Failed(f"{what} is empty; nothing was changed.")
    return password
