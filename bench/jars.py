"""Java archives for tests and measurements, fetched by Maven with the machine's settings.

`jars.ini` lists the archives of each set with their digests, which are checked on every use. NoJars if Java or Maven
is missing, or if Maven cannot fetch them.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond-tests"
LIST = Path(__file__).with_name("jars.ini")
FETCH_SECONDS_MAX = 100

PROJECT = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>millpond</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions>"
    "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
"""An archive without those that it would bring along: `jars.ini` names all that are needed."""

_failures: dict[str, str] = {}


class NoJars(Exception):
    """The archives are not available; the message says why."""


def java_command() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise NoJars("there is no Java here: apt-get install openjdk-17-jdk-headless")
    return found


def fetched(name: str) -> list[Path]:
    """The archives of this set, fetched if they are missing."""
    java_command()
    listed = configparser.ConfigParser(delimiters=("=",))
    listed.optionxform = str  # type: ignore[assignment,method-assign]
    listed.read(LIST, encoding="utf-8")
    wanted = {_cached(coordinates): (coordinates, digest) for coordinates, digest in listed[name].items()}
    if missing := [coordinates for path, (coordinates, _) in wanted.items() if not path.exists()]:
        _fetch(name, missing)
    for path, (_, digest) in wanted.items():
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        assert found == digest, f"{path} is not what it should be; delete it"
    return list(wanted)


def _cached(coordinates: str) -> Path:
    _, artifact, version = coordinates.split(":")
    return CACHE / f"{artifact}-{version}.jar"


def _fetch(name: str, wanted: list[str]) -> None:
    """Have Maven copy the archives into the cache."""
    maven = shutil.which("mvn")
    if maven is None:
        raise NoJars("there is no Maven here to get Java archives with: apt-get install maven")
    if name in _failures:
        raise NoJars(_failures[name])
    CACHE.mkdir(parents=True, exist_ok=True)
    # In the same file system, to be renamed at the end: two test processes may fetch them at the same time.
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        project = Path(folder) / "pom.xml"
        project.write_text(
            PROJECT.format(dependencies="".join(DEPENDENCY.format(*each.split(":")) for each in wanted))
        )
        words = [maven, "-B", "-q", "-f", str(project), "dependency:copy-dependencies"]
        words += [f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS_MAX)
            fault = "" if done.returncode == 0 else (done.stdout + done.stderr).strip().partition("\n")[0]
        except subprocess.TimeoutExpired:
            fault = f"no answer within {FETCH_SECONDS_MAX} s"
        if fault:
            _failures[name] = f"Maven does not get the archives {name!r}: {fault}"
            raise NoJars(_failures[name])
        for coordinates in wanted:
            path = _cached(coordinates)
            (Path(folder) / path.name).replace(path)
