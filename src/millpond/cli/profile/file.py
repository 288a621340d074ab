"""Profiles for commands, and writing their file. `remote.profiles` reads it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from millpond.cli.errors import Failed, cause
from millpond.remote import profiles
from millpond.remote.profiles import NAME as NAME
from millpond.remote.profiles import VARIABLE as VARIABLE
from millpond.remote.profiles import Profile as Profile
from millpond.remote.profiles import ProfileError

_HEAD: Final = "# Written by `millpond profile`, which keeps no comments. It may hold secrets: keep it to yourself.\n"
_OTHERS: Final = 0o077
"""The permission bits of group and others."""


class Profiles(profiles.Profiles):
    """Those of commands."""

    def get(self, name: str, origin: str) -> Profile:
        """The profile of this name; `origin` is the option that named it, for the error message."""
        try:
            return super().get(name, origin)
        except ProfileError as fault:
            raise Failed(str(fault)) from None


def profiles_path() -> Path:
    try:
        return profiles.profiles_path()
    except ProfileError as fault:
        raise Failed(str(fault)) from None


def read_profiles() -> Profiles:
    """The profiles in the file; none without a file. Raises Failed if it cannot be read."""
    try:
        found = profiles.read_profiles()
    except ProfileError as fault:
        raise Failed(str(fault)) from None
    return Profiles(found.by_name, found.in_use)


def warn_of_readers(given: Iterable[Profile]) -> None:
    """Warns on standard error if others can read the secrets of these profiles."""
    if not any(each.has_secrets for each in given):
        return
    path = profiles_path()
    with contextlib.suppress(OSError):
        if path.stat().st_mode & _OTHERS:
            click.echo(f"Others may read the secrets in {path}: chmod 600 {path}", err=True)


def write_profiles(written: Profiles) -> Path:
    """Replaces the file atomically and returns its path."""
    path = profiles_path()
    lines = [_HEAD]
    if written.in_use is not None:
        lines.append(f"use = {_quoted(written.in_use)}\n")
    for each in written.by_name.values():
        lines.append(f"\n[profiles.{_quoted(each.name)}]\nbootstrap = {_quoted(each.bootstrap)}\n")
        if each.settings:
            lines.append(f"\n[profiles.{_quoted(each.name)}.settings]\n")
            lines += [f"{_quoted(name)} = {_quoted(value)}\n" for name, value in each.settings.items()]
    # Keeps a symbolic link.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp creates a file that only the user can read.
        descriptor, draft = tempfile.mkstemp(prefix=".profiles-", dir=target.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("".join(lines))
                file.flush()
                # Otherwise a power cut could leave an empty file.
                os.fsync(descriptor)
            os.replace(draft, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except UnicodeEncodeError:
        raise Failed("Nothing was written: an address or a setting is not valid UTF-8.") from None
    except OSError as error:
        raise Failed(f"The profiles cannot be written to {path}: {cause(error)}.") from None
    return path


def _quoted(text: str) -> str:
    """A TOML basic string. JSON's escapes are valid in TOML; only DEL must be escaped in addition."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
