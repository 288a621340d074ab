"""Builds the one compiled room when a compiler is at hand; without one the plain twin serves."""

from setuptools import Extension, setup

ROOM = "src/millpond/wire/kernel"
MODULES = ("_fast", "_columns", "_rows")


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    import os

    sources = {name: f"{ROOM}/{name}.pyx" for name in MODULES}
    if not all(map(os.path.exists, sources.values())):
        return []
    found: list[Extension] = cythonize(
        [Extension(f"millpond.wire.kernel.{name}", [source]) for name, source in sources.items()],
        # Out of the source tree, so that the generated C is not packed into the wheel.
        build_dir="build/cython",
        compiler_directives={"language_level": 3},
    )
    for extension in found:
        # cythonize() drops the flag: a failed compile must leave a working install.
        extension.optional = True
    return found


setup(ext_modules=extensions())
