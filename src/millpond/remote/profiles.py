"""The file of profiles: names for clusters, with their addresses, settings and secrets.

It is in the user's configuration folder, readable only by the user; `millpond profile` writes it. Unknown keys in a
hand-written file are refused, because the next `millpond profile add` would drop them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millpond.base.secret_names import is_secret, shown
from millpond.remote.errors import ConfigError

VARIABLE: Final = "MILLPOND_PROFILE"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProfileError(ConfigError):
    """There is no such profile, or the file cannot be read."""


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
    """The default profile of commands."""

    def get(self, name: str, origin: str) -> Profile:
        """The profile of this name; `origin` is what named it, for the error message."""
        from millpond.base.names import nearest

        profile = self.by_name.get(name)
        if profile is None:
            near = nearest(name, self.by_name)
            hint = " Add it with `millpond profile add`." if near == "." else ""
            raise ProfileError(f"{origin}: there is no profile {name}{near}{hint}")
        return profile


def profiles_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification ignores a path that is not absolute.
    if os.path.isabs(home):
        return Path(home) / "millpond" / "profiles.toml"
    try:
        return Path("~").expanduser() / ".config" / "millpond" / "profiles.toml"
    except RuntimeError:
        raise ProfileError("There is no home folder to keep profiles in: set HOME or XDG_CONFIG_HOME.") from None


def read_profiles() -> Profiles:
    """The profiles in the file; none without a file or a home. ProfileError if it cannot be read."""
    try:
        path = profiles_path()
    except ProfileError:
        return Profiles()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        # An error, not an empty file: otherwise commands would silently go to the node on this machine.
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise ProfileError(
            f"The profiles in {path} cannot be read: {reason}. Fix that, or name the cluster with --bootstrap."
        ) from None
    import tomllib

    try:
        return _profiles(tomllib.loads(text))
    except RecursionError:
        fault: object = "its values are nested too deeply"
    except ValueError as error:
        fault = error
    end = "" if str(fault).endswith((".", "?", "!")) else "."
    raise ProfileError(f"The profiles in {path} are invalid: {fault}{end} Correct the file, or delete it.")


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
