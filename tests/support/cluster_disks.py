"""Faulty disks for a cluster's nodes: full, slow, or failing to sync.

A disk fills up because it is small: each node has its own file system in memory, which takes root to mount. A
preloaded library (`failing_sync.c`) makes syncs fail, which takes a compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("failing_sync.c")
DISK_BYTES: Final = 384 << 20
FILLER: Final = "filler"
PAGE_BYTES: Final = 4096
_DETACH: Final = 2
COMPILE_SECONDS_MAX: Final = 30


class Disks:
    """The disks in a cluster's folder, set up before it starts; `reasons` say which ones are unavailable here."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.reasons: dict[str, str] = {}
        self._folder = folder
        self._mounted: list[Path] = []
        self._library: Path | None = None
        self._mount(nodes)
        self._compile()

    @property
    def can_fill(self) -> bool:
        return bool(self._mounted)

    @property
    def can_spoil_syncs(self) -> bool:
        return self._library is not None

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Disks]:
        """Nodes that start within this context use these disks; afterwards they are removed."""
        before = os.environ.get("LD_PRELOAD")
        if self._library is not None:
            os.environ["LD_PRELOAD"] = " ".join(filter(None, [str(self._library), before]))
        try:
            yield self
        finally:
            if before is None:
                os.environ.pop("LD_PRELOAD", None)
            else:
                os.environ["LD_PRELOAD"] = before
            for path in self._mounted:
                ctypes.CDLL(None).umount2(os.fsencode(path), _DETACH)

    # Faults.

    def fill(self, node_id: int) -> None:
        """Fill the disk to the last byte."""
        with (self._node(node_id) / FILLER).open("wb") as file:
            step = DISK_BYTES
            while step >= PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError:
                    step //= 2

    def make_room(self, node_id: int) -> None:
        (self._node(node_id) / FILLER).unlink(missing_ok=True)

    @contextlib.contextmanager
    def bad_syncs(self, node_id: int, how: str) -> Iterator[None]:
        """`how` is "fail" or "slow MILLISECONDS"."""
        control = self._folder / f"node-{node_id}.sync"
        control.with_suffix(".part").write_text(how)
        control.with_suffix(".part").replace(control)
        try:
            yield
        finally:
            control.unlink()

    # Setup.

    def _node(self, node_id: int) -> Path:
        return self._folder / f"node-{node_id}"

    def _mount(self, nodes: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        for node_id in range(1, nodes + 1):
            path = self._node(node_id)
            path.mkdir()
            if library.mount(b"millpond", os.fsencode(path), b"tmpfs", 0, b"size=%d,mode=700" % DISK_BYTES) != 0:
                why = os.strerror(ctypes.get_errno())
                self.reasons["a full disk"] = f"no disk of its own can be mounted for a node: {why}"
                return
            self._mounted.append(path)

    def _compile(self) -> None:
        target = self._folder / "failing_sync.so"
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
        try:
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=COMPILE_SECONDS_MAX)
        except FileNotFoundError:
            self.reasons["bad syncs"] = "there is no C compiler here"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as fault:
            self.reasons["bad syncs"] = str(fault)
        else:
            self._library = target
