"""CRC-32C with the CPU's own instruction.

The function comes directly from the crc32c package's extension module: importing the package itself costs a tenth of
a node's startup.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from millpond.base.ports import Buffer


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """The checksum of `data`, continuing from `value`."""
        ...


def _load() -> Checksum:
    package = find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("_crc32c", list(folders))
    if spec is None or spec.loader is None:
        # Packaged differently than expected: import it the slow way.
        from crc32c import crc32c as slowly_found

        return cast(Checksum, slowly_found)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c: Checksum = _load()
"""The checksum of a buffer, without copying it; releases the GIL."""
