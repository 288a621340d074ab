"""Java archives for the tests: from Maven Central into a folder of the user's cache, once, and checked each time.

`jars.ini` says which archives a set has. Whoever needs a set where Java or the network is missing is told so.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

REGISTRY = "https://repo.maven.apache.org/maven2/"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond-tests"
LIST = Path(__file__).with_name("jars.ini")
FETCHES_AT_ONCE = 4
ANSWER_SECONDS_MAX = 30


class NoJars(Exception):
    """They cannot be had here; the text says why."""


def jars(name: str) -> list[Path]:
    """The archives of this set; skips the test that asks where they cannot be had."""
    try:
        return fetched(name)
    except NoJars as reason:
        pytest.skip(str(reason))


def class_path(name: str) -> str:
    return os.pathsep.join(map(str, jars(name)))


def java_command() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise NoJars("there is no Java here: apt-get install openjdk-17-jdk-headless")
    return found


def fetched(name: str) -> list[Path]:
    """The archives of this set, fetched where they are not there yet."""
    java_command()
    listed = configparser.ConfigParser(delimiters=("=",))
    listed.optionxform = str  # type: ignore[assignment,method-assign]
    listed.read(LIST, encoding="utf-8")
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        return list(pool.map(lambda entry: _archive(*entry), listed[name].items()))


def _archive(coordinates: str, digest: str) -> Path:
    group, artifact, version = coordinates.split(":")
    found = CACHE / f"{artifact}-{version}.jar"
    if not found.exists():
        _fetch(f"{REGISTRY}{group.replace('.', '/')}/{artifact}/{version}/{found.name}", found)
    assert hashlib.sha256(found.read_bytes()).hexdigest() == digest, f"{found} is not what it should be; delete it"
    return found


def _fetch(address: str, target: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_SECONDS_MAX) as reply:
            data = reply.read()
    except (urllib.error.URLError, OSError) as fault:
        raise NoJars(f"Maven Central does not give {target.name}: {fault}") from fault
    # Two test processes may fetch it at the same time.
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(target)
