"""The file of profiles: names that a person has given to clusters, with the way to each and its secrets.

It lies in the user's own folder for settings and only the user can read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millpond.cli.errors import Failed, cause

VARIABLE: Final = "MILLPOND_PROFILE"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HIDDEN: Final = "(hidden)"

_HEAD: Final = "# Written by `millpond profile`, which keeps no comments. It may hold secrets: keep it to yourself.\n"
_SECRET: Final = re.compile(r"password|secret|token|jaas|key\.pem|\.key$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Profile:
    """One cluster: where it is, and the client settings that it wants."""

    name: str
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def shown_settings(self) -> dict[str, str]:
        """The settings as they may be shown: without secrets."""
        return {name: HIDDEN if is_secret(name) else value for name, value in self.settings.items()}


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


def is_secret(name: str) -> bool:
    """Whether a setting of this name is one that is not shown."""
    return _SECRET.search(name) is not None


def profiles_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # As the XDG specification has it: a path that is not absolute counts as none.
    folder = Path(home) if os.path.isabs(home) else Path("~").expanduser() / ".config"
    return folder / "millpond" / "profiles.toml"


def read_profiles() -> Profiles:
    """What the file has; nothing where there is none. Failed with a sentence where it cannot be read."""
    path = profiles_path()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"The profiles in {path} cannot be read: {cause(error)}.") from None
    import tomllib

    try:
        fields = tomllib.loads(text)
        known = {name: _profile(name, given) for name, given in dict(fields.get("profiles", {})).items()}
        in_use = fields.get("use")
        if in_use is not None and in_use not in known:
            raise ValueError(f"use names the profile {in_use!r}, which is not there")
    except (ValueError, TypeError, AttributeError, KeyError) as fault:
        raise Failed(f"The profiles in {path} make no sense: {fault}. Correct the file, or delete it.") from None
    return Profiles(known, in_use)


def _profile(name: str, given: Mapping[str, object]) -> Profile:
    bootstrap = given.get("bootstrap")
    settings = given.get("settings", {})
    if not isinstance(bootstrap, str) or not bootstrap:
        raise ValueError(f"profile {name} has no bootstrap")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ValueError(f"the settings of profile {name} are no table of names and texts")
    return Profile(name, bootstrap, settings)


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes a file that nobody else can read.
        descriptor, draft = tempfile.mkstemp(prefix=".profiles-", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("".join(lines))
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as error:
        raise Failed(f"The profiles cannot be written to {path}: {cause(error)}.") from None
    return path


def _quoted(text: str) -> str:
    """A basic string of TOML. JSON's escapes are among its own; only the sign DEL is let through by JSON alone."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
