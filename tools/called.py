"""A plugin of pytest: notes which functions of `src/millpond` were called, for `tools/coverage.py`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "millpond") + os.sep
NOTES = "MILLPOND_CALLED"
"""The folder that the notes go to."""

_called: set[CodeType] = set()


def _note(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _called.add(frame.f_code)


def pytest_configure() -> None:
    threading.setprofile(_note)
    sys.setprofile(_note)


def pytest_unconfigure() -> None:
    sys.setprofile(None)
    lines = {
        f"{code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno}"
        for code in list(_called)
        if code.co_filename.startswith(SOURCE)
    }
    (Path(os.environ[NOTES]) / f"{os.getpid()}.txt").write_text("\n".join(sorted(lines)))
