"""Files that only their owner can read, and folders that no other user can change.

Files are written beside their place and renamed: a reader sees the old or the new content, and at no moment could
somebody else have opened them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
LINKS_MAX: Final = 40
"""As many as Linux follows."""
PUBLIC_MODE: Final = 0o644
"""For files that are public, such as a certificate without its key."""


def make_private_folder(path: Path) -> None:
    """Create it and its parents; only the last one is private."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


class OpenToOthers(Exception):
    """Others could change what is in a data folder; the text says who, and what to do."""


def guard_data_folder(folder: str, note: Callable[..., None]) -> None:
    """Refuse a folder that others can write to, and close one that they can only read.

    A folder that its owner opened to a group alone stays open to it: that was deliberate.
    """
    path = Path(folder).absolute()
    if (who := who_else_writes(path)) is not None:
        raise OpenToOthers(f"{who}: close it (chmod go-w), or choose another folder with --data DIR")
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & stat.S_IRWXO:
            path.chmod(mode & ~0o077)
            note("closed the data folder to other users", folder=path, before=f"{mode:03o}")


def private_opener(path: str, flags: int) -> int:
    """For `open`: files it creates are private to their owner."""
    return os.open(path, flags, FILE_MODE)


def write_private(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Write all of it or nothing, and sync it."""
    from tempfile import mkstemp  # few nodes write one, and startup is faster without it

    descriptor, draft = mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def who_else_writes(path: Path) -> str | None:
    """Who else could change what is in this folder, as a part of a sentence; None if no other user could.

    This includes the parent folders: renaming one allows replacing its content. Root can do anything anyway, and in a
    sticky folder such as /tmp users can change only their own files.
    """
    folders, links = _way_to(path)
    for link in links:
        owner = link.lstat().st_uid
        if owner not in (0, os.geteuid()) and os.geteuid():
            return f"the link {link} belongs to {_user(owner)}"
    for folder in folders:
        try:
            facts = folder.stat()
        except OSError:
            continue
        if facts.st_mode & stat.S_ISVTX and folder != path.absolute():
            continue
        where = "it" if folder == path.absolute() else str(folder)
        if facts.st_mode & stat.S_IWOTH:
            return f"every user of this machine can write to {where}"
        if facts.st_mode & stat.S_IWGRP and (others := _others_of_group(facts.st_gid)):
            return f"the group {others} can write to {where}"
        if facts.st_uid not in (0, os.geteuid()) and os.geteuid():
            # Root often means a container, with a folder that belongs to the user who started it.
            return f"{where} belongs to {_user(facts.st_uid)}"
    return None


def _way_to(path: Path) -> tuple[list[Path], list[Path]]:
    """The folder, all folders on its path, and the links that lead there.

    Replacing a link redirects the path, so every step counts.
    """
    at = Path("/")
    folders: list[Path] = [path.absolute()]
    links: list[Path] = []
    left = list(reversed(path.absolute().parts[1:]))
    while left:
        folders.append(at)
        name = left.pop()
        here = at.parent if name == ".." else at / name
        if len(links) < LINKS_MAX and os.path.islink(here):
            links.append(here)
            target = Path(os.readlink(here))
            at = Path("/") if target.is_absolute() else at
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        else:
            at = here
    return [*dict.fromkeys([*folders, at])], links


def _others_of_group(number: int) -> str | None:
    """The group's name if it has other members. A user's private group, or an unnamed one, has none."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(number)
    except KeyError:
        return None
    own = _user(os.geteuid())
    members = {*group.gr_mem, *(each.pw_name for each in pwd.getpwall() if each.pw_gid == number)}
    return group.gr_name if members - {own, "root"} else None


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user with id {number}"
