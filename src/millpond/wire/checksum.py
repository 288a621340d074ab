"""CRC-32C, in the processor's own instruction.

It is the function of the crc32c package, taken from its extension module directly: the package itself brings along a
command line and its own metadata, a tenth of a node's start-up.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from millpond.base.ports import Buffer


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The checksum of `data`, going on from that of what came before it."""
        ...


def _load() -> Checksum:
    package = find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("_crc32c", list(folders))
    if spec is None or spec.loader is None:
        # Built in another way than we know: then the slow door is the right one.
        from crc32c import crc32c as slowly_found

        return cast(Checksum, slowly_found)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c: Checksum = _load()
"""The checksum of a buffer, without copying it; lets other threads run meanwhile."""
