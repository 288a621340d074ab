"""Builds the one compiled room when a compiler is at hand; without one the plain twin serves.

Two words in the environment say otherwise: `MILLPOND_PLAIN=1` compiles nothing, `MILLPOND_ABI3=1` compiles for every
Python from the oldest that is supported on, not only for the one that builds (docs/decisions/0017-one-wheel.md).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOM = "src/millpond/wire/kernel"
MODULES = ("_fast", "_small", "_columns", "_messages", "_rows", "_values")
OLDEST = (3, 11)
FOR_ALL = bool(os.environ.get("MILLPOND_ABI3"))


def extensions() -> list[Extension]:
    if os.environ.get("MILLPOND_PLAIN"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    sources = {name: f"{ROOM}/{name}.pyx" for name in MODULES}
    if not all(map(os.path.exists, sources.values())):
        return []
    macros = [("Py_LIMITED_API", f"0x{OLDEST[0]:02x}{OLDEST[1]:02x}0000")] if FOR_ALL else []
    found: list[Extension] = cythonize(
        [
            Extension(f"millpond.wire.kernel.{name}", [source], define_macros=macros, py_limited_api=FOR_ALL)
            for name, source in sources.items()
        ],
        # Out of the source tree, so that the generated C is not packed into the wheel.
        build_dir="build/cython",
        compiler_directives={"language_level": 3},
    )
    for extension in found:
        # cythonize() drops the flag: a failed compile must leave a working install.
        extension.optional = True
        # Debug information makes the wheel three times as large.
        extension.extra_compile_args = ["-g0"]
    return found


class BuildPackage(build_py):
    """Adds what the package needs besides its modules: the stub of the messages, and docs/ for `millpond help`."""

    def run(self) -> None:
        subprocess.run([sys.executable, "tools/wire_stub.py"], check=True)
        super().run()
        if not self.editable_mode:
            pages = Path(self.build_lib, "millpond/docs")
            pages.mkdir(parents=True, exist_ok=True)
            for page in sorted(Path("docs").glob("*.md")):
                shutil.copy(page, pages)


built = extensions()
tag = {"py_limited_api": f"cp{OLDEST[0]}{OLDEST[1]}"} if built and FOR_ALL else {}
setup(cmdclass={"build_py": BuildPackage}, ext_modules=built, options={"bdist_wheel": tag})
