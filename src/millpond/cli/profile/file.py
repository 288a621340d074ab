"""The file of profiles: names for clusters, with their addresses, settings and secrets.

It is in the user's configuration folder, readable only by the user. Unknown keys in a hand-written file are refused,
because the next `millpond profile add` would drop them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from millpond.base.secret_names import is_secret, shown
from millpond.cli.errors import Failed, cause, sentence

VARIABLE: Final = "MILLPOND_PROFILE"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_HEAD: Final = "# Written by `millpond profile`, which keeps no comments. It may hold secrets: keep it to yourself.\n"
_OTHERS: Final = 0o077
"""The permission bits of group and others."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The address of a cluster and its client settings."""

    name: str
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def shown_settings(self) -> dict[str, str]:
        """The settings without secrets."""
        return {name: shown(name, value) for name, value in self.settings.items()}

    @property
    def has_secrets(self) -> bool:
        return any(map(is_secret, self.settings))


@dataclass(frozen=True, slots=True)
class Profiles:
    by_name: Mapping[str, Profile] = field(default_factory=dict)
    in_use: str | None = None
    """The default profile."""

    def get(self, name: str, origin: str) -> Profile:
        """The profile of this name; `origin` is the option that named it, for the error message."""
        from millpond.base.names import nearest

        profile = self.by_name.get(name)
        if profile is None:
            near = nearest(name, self.by_name)
            hint = " Add it with `millpond profile add`." if near == "." else ""
            raise Failed(f"{origin}: there is no profile {name}{near}{hint}")
        return profile


class NoHome(Failed):
    """There is no folder for the user's settings."""


def profiles_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification ignores a path that is not absolute.
    if os.path.isabs(home):
        return Path(home) / "millpond" / "profiles.toml"
    try:
        return Path("~").expanduser() / ".config" / "millpond" / "profiles.toml"
    except RuntimeError:
        raise NoHome("There is no home folder to keep profiles in: set HOME or XDG_CONFIG_HOME.") from None


def read_profiles() -> Profiles:
    """The profiles in the file; none without a file. Raises Failed if it cannot be read."""
    try:
        path = profiles_path()
        text = path.read_text(encoding="utf-8")
    except (NoHome, FileNotFoundError, NotADirectoryError):
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        # An error, not an empty file: otherwise commands would silently go to the node on this machine.
        raise Failed(
            f"The profiles in {path} cannot be read: {cause(error)}. Fix that, or name the cluster with --bootstrap."
        ) from None
    import tomllib

    try:
        return _profiles(tomllib.loads(text))
    except RecursionError:
        fault: object = "its values are nested too deeply"
    except ValueError as error:
        fault = error
    raise Failed(f"The profiles in {path} are invalid: {sentence(str(fault))} Correct the file, or delete it.")


def _profiles(content: Mapping[str, object]) -> Profiles:
    """Raises ValueError with the fault."""
    _check_keys("the file", content, ("use", "profiles"))
    tables = content.get("profiles", {})
    if not isinstance(tables, dict):
        raise ValueError("profiles must be a table of profiles")
    by_name = {name: _profile(name, each) for name, each in tables.items()}
    in_use = content.get("use")
    if in_use is not None and (not isinstance(in_use, str) or in_use not in by_name):
        raise ValueError(f"use names the profile {in_use!r}, which does not exist")
    return Profiles(by_name, in_use)


def _profile(name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise ValueError(f"profile {name} must be a table")
    _check_keys(f"profile {name}", table, ("bootstrap", "settings"))
    bootstrap = table.get("bootstrap")
    settings = table.get("settings", {})
    if not isinstance(bootstrap, str) or not bootstrap:
        raise ValueError(f"profile {name} has no bootstrap")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ValueError(f"the settings of profile {name} must be a table of strings")
    return Profile(name, bootstrap, settings)


def _check_keys(where: str, table: Mapping[str, object], keys: Iterable[str]) -> None:
    from millpond.base.names import nearest

    keys = list(keys)
    for key in table:
        if key not in keys:
            end = nearest(key, keys).removesuffix(".") or f"; there are {' and '.join(keys)}"
            raise ValueError(f"{where} has an unknown key {key!r}{end}")


def warn_of_readers(profiles: Iterable[Profile]) -> None:
    """Warns on standard error if others can read the secrets of these profiles."""
    if not any(each.has_secrets for each in profiles):
        return
    path = profiles_path()
    with contextlib.suppress(OSError):
        if path.stat().st_mode & _OTHERS:
            click.echo(f"Others may read the secrets in {path}: chmod 600 {path}", err=True)


def write_profiles(profiles: Profiles) -> Path:
    """Replaces the file atomically and returns its path."""
    path = profiles_path()
    lines = [_HEAD]
    if profiles.in_use is not None:
        lines.append(f"use = {_quoted(profiles.in_use)}\n")
    for each in profiles.by_name.values():
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
