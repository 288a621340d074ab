"""The packages that Spark and we need, with versions; each error is one line with the command to run."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PYSPARK_LEAST: Final = (4, 2)
PANDAS_BELOW: Final = (3,)
NEEDED: Final = ("pyarrow", "pandas")

INSTALL: Final = "pip install 'millpond[spark]'"


class WrongVersion(Exception):
    """A package is missing, too old or too new. The message says what to do."""


def check_packages(version_of: Callable[[str], str | None] | None = None) -> None:
    """Raises WrongVersion unless pyspark and its packages for Arrow are installed in supported versions."""
    version_of = version_of or installed_version
    installed = version_of("pyspark") or version_of("pyspark-client")
    if installed is None:
        raise WrongVersion(f"pyspark is not installed: {INSTALL}")
    check_pyspark(installed)
    for package in NEEDED:
        if version_of(package) is None:
            raise WrongVersion(f"{package} is not installed: {INSTALL}")
    pandas = version_of("pandas")
    if pandas is not None and numbers_of(pandas) >= PANDAS_BELOW:
        raise WrongVersion(f"pandas {pandas} is too new for Spark: pip install 'pandas>=2.2,<3'")


def check_pyspark(installed: str) -> None:
    if numbers_of(installed) < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise WrongVersion(
            f"pyspark {installed} is too old, it must be {least} or newer: pip install 'pyspark>={least}'"
        )


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def numbers_of(text: str) -> tuple[int, ...]:
    """The first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
