"""Reads passwords: from a prompt, a file or a pipe, never from the command line."""

from __future__ import annotations

import sys

import click

from millpond.cli.errors import Failed, cause


def ask_password(what: str, file: str | None = None) -> str:
    """The first line of the file, or of a hidden prompt, or of standard input.

    Never from the command line, which every user of the machine can see (`ps`).
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
