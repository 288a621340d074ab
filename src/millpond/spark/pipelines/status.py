"""status.json: written by a run once a second, read by `millpond pipeline status`.

The file is replaced atomically, so that readers never see a partial one. A run that was killed is recognized by its
missing process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millpond.spark.pipelines.lock import is_held
from millpond.spark.pipelines.progress import Snapshot, State

FILE: Final = "status.json"
FILE_BYTES_MAX: Final = 10_000_000
RUNNING: Final = ("starting", "running", "waiting", "stopping")


FOLDER_ENDING: Final = ".folder"
"""The suffix of files that point to a pipeline's state."""


def write_status(folder: Path, snapshot: Snapshot) -> None:
    """Replace the status in `folder` with this one."""
    write_whole(folder / FILE, json.dumps(snapshot.as_object()))


def write_whole(path: Path, text: str, *, synced: bool = False) -> None:
    """Write atomically; with `synced` also across a power failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with open(new, "w") as file:
        file.write(text)
        if synced:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline that runs or ran here."""

    snapshot: Snapshot
    condition: str
    """running | stopped | finished | failed | dead"""

    @property
    def is_running(self) -> bool:
        return self.condition == "running"


def read_status(folder: Path) -> Status | None:
    """The status of the pipeline in `folder`, or None."""
    path = folder / FILE
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        snapshot = Snapshot.from_object(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    if snapshot.state not in RUNNING:
        return Status(_at_rest(snapshot), snapshot.state)
    if is_held(folder):
        return Status(snapshot, "running")
    return Status(_at_rest(snapshot), "dead")


def _at_rest(snapshot: Snapshot) -> Snapshot:
    """The process is gone: replace the last states and rates."""
    jobs = tuple(
        replace(each, state=_rested(each.state), input_per_second=None, done_per_second=None)
        for each in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)


def _rested(state: State) -> State:
    return "stopped" if state in RUNNING else state


def note_folder(home: Path, name: str, folder: Path) -> None:
    """Register a pipeline whose checkpoint is elsewhere in `home`."""
    if folder.parent.resolve() != home.resolve():
        write_whole(home / f"{name}{FOLDER_ENDING}", str(folder.resolve()))


def find_statuses(home: Path) -> Iterator[tuple[Path, Status]]:
    """Every pipeline with a folder in `home`, or registered there, by name."""
    try:
        entries = sorted(home.iterdir())
        folders = [each for each in entries if each.is_dir()]
        folders += [Path(each.read_text()) for each in entries if each.name.endswith(FOLDER_ENDING)]
    except (OSError, UnicodeDecodeError):
        return
    for each in dict.fromkeys(folders):
        status = read_status(each)
        if status is not None:
            yield each, status
