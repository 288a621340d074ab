"""The file of profiles: names that a person has given to clusters, with the way to each and its secrets.

It lies in the user's own folder for settings and only the user can read it. A file that somebody wrote by hand is
held to the same: what nobody would read is refused, as the next `millpond profile add` would throw it away.
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
"""The rights of everybody but the owner."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One cluster: where it is, and the client settings that it wants."""

    name: str
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def shown_settings(self) -> dict[str, str]:
        """The settings as they may be shown: without secrets."""
        return {name: shown(name, value) for name, value in self.settings.items()}

    @property
    def has_secrets(self) -> bool:
        return any(map(is_secret, self.settings))


@dataclass(frozen=True, slots=True)
class Profiles:
    known: Mapping[str, Profile] = field(default_factory=dict)
    in_use: str | None = None
    """Which one counts where nobody names a cluster."""

    def get(self, name: str, origin: str) -> Profile:
        """The profile of this name; `origin` is who named it, for the sentence that there is none."""
        from millpond.base.names import nearest

        profile = self.known.get(name)
        if profile is None:
            near = nearest(name, self.known)
            hint = " Add it with `millpond profile add`." if near == "." else ""
            raise Failed(f"{origin}: there is no profile {name}{near}{hint}")
        return profile


class NoHome(Failed):
    """There is no folder for a user's own settings."""


def profiles_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # As the XDG specification has it: a path that is not absolute counts as none.
    if os.path.isabs(home):
        return Path(home) / "millpond" / "profiles.toml"
    try:
        return Path("~").expanduser() / ".config" / "millpond" / "profiles.toml"
    except RuntimeError:
        raise NoHome("There is no home folder to keep profiles in: set HOME or XDG_CONFIG_HOME.") from None


def read_profiles() -> Profiles:
    """What the file has; nothing where there is none. Failed with a sentence where it cannot be read."""
    try:
        path = profiles_path()
        text = path.read_text(encoding="utf-8")
    except (NoHome, FileNotFoundError, NotADirectoryError):
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        # Not as if there were none: a profile in use would silently give way to the node on this machine.
        raise Failed(
            f"The profiles in {path} cannot be read: {cause(error)}. Mend that, or name the cluster with --bootstrap."
        ) from None
    import tomllib

    try:
        return _profiles(tomllib.loads(text))
    except RecursionError:
        fault: object = "its values are nested too deeply"
    except ValueError as error:
        fault = error
    raise Failed(f"The profiles in {path} make no sense: {sentence(str(fault))} Correct the file, or delete it.")


def _profiles(given: Mapping[str, object]) -> Profiles:
    """ValueError says what is wrong."""
    _check_keys("the file", given, ("use", "profiles"))
    tables = given.get("profiles", {})
    if not isinstance(tables, dict):
        raise ValueError("profiles is no table of profiles")
    known = {name: _profile(name, each) for name, each in tables.items()}
    in_use = given.get("use")
    if in_use is not None and (not isinstance(in_use, str) or in_use not in known):
        raise ValueError(f"use names the profile {in_use!r}, which is not there")
    return Profiles(known, in_use)


def _profile(name: str, given: object) -> Profile:
    if not isinstance(given, dict):
        raise ValueError(f"profile {name} is no table")
    _check_keys(f"profile {name}", given, ("bootstrap", "settings"))
    bootstrap = given.get("bootstrap")
    settings = given.get("settings", {})
    if not isinstance(bootstrap, str) or not bootstrap:
        raise ValueError(f"profile {name} has no bootstrap")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ValueError(f"the settings of profile {name} are no table of names and texts")
    return Profile(name, bootstrap, settings)


def _check_keys(where: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    from millpond.base.names import nearest

    known = list(known)
    for key in given:
        if key not in known:
            end = nearest(key, known).removesuffix(".") or f"; there are {' and '.join(known)}"
            raise ValueError(f"{where} has a key {key!r} that nobody knows{end}")


def warn_of_readers(profiles: Iterable[Profile]) -> None:
    """Say, beside the output, that others of this machine can read the secrets of these profiles."""
    if not any(each.has_secrets for each in profiles):
        return
    path = profiles_path()
    with contextlib.suppress(OSError):
        if path.stat().st_mode & _OTHERS:
            click.echo(f"Others may read the secrets in {path}: chmod 600 {path}", err=True)


def write_profiles(profiles: Profiles) -> Path:
    """All of them, at once: whoever reads meanwhile sees what was before or what is now. Gives the file's path."""
    path = profiles_path()
    lines = [_HEAD]
    if profiles.in_use is not None:
        lines.append(f"use = {_quoted(profiles.in_use)}\n")
    for each in profiles.known.values():
        lines.append(f"\n[profiles.{_quoted(each.name)}]\nbootstrap = {_quoted(each.bootstrap)}\n")
        if each.settings:
            lines.append(f"\n[profiles.{_quoted(each.name)}.settings]\n")
            lines += [f"{_quoted(name)} = {_quoted(value)}\n" for name, value in each.settings.items()]
    # A link to where somebody keeps such files stays one.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes a file that nobody else can read.
        descriptor, draft = tempfile.mkstemp(prefix=".profiles-", dir=target.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("".join(lines))
                file.flush()
                # Else a power cut may leave an empty file in the place of all secrets.
                os.fsync(descriptor)
            os.replace(draft, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except UnicodeEncodeError:
        raise Failed("Nothing was written: an address or a setting has bytes that are no text in UTF-8.") from None
    except OSError as error:
        raise Failed(f"The profiles cannot be written to {path}: {cause(error)}.") from None
    return path


def _quoted(text: str) -> str:
    """A basic string of TOML. JSON's escapes are among its own; only the sign DEL is let through by JSON alone."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
