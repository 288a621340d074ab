"""Builds the one compiled room when a compiler is at hand; without one the plain twin serves."""

from setuptools import Extension, setup

SOURCE = "src/millpond/wire/kernel/_fast.pyx"


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    import os

    if not os.path.exists(SOURCE):
        return []
    found: list[Extension] = cythonize(
        [Extension("millpond.wire.kernel._fast", [SOURCE])],
        # Out of the source tree, so that the generated C is not packed into the wheel.
        build_dir="build/cython",
        compiler_directives={"language_level": 3},
    )
    for extension in found:
        # cythonize() drops the flag: a failed compile must leave a working install.
        extension.optional = True
    return found


setup(ext_modules=extensions())
