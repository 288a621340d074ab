"""What `make dist` builds: the contents, and whether each package works in an empty environment.

Each package is installed into a virtual environment that has only its declared dependencies, linked from the one that
runs the tests: nothing is downloaded, and an undeclared dependency is missing.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.patience import with_time

pytestmark = pytest.mark.xdist_group("dist")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECONDS_MAX = 250
NOT_SHIPPED = {".so", ".pyc", ".pyx", ".pxi"}
ROOMS = ("_fast", "_small", "_columns", "_messages", "_rows", "_values")
PARTS = (
    "_avro_values",
    "_big_endian",
    "_blocks",
    "_held",
    "_json_scalars",
    "_json_values",
    "_utf8",
    "_varints",
)

STUB = "millpond/wire/messages.pyi"
"""Written by the build from the schemas."""

CLIENT = """
import sys
from millpond import Consumer, Producer

with Producer(bootstrap=sys.argv[1]) as producer:
    producer.send(topic="orders", key="tea", value={"cups": 2}).result(60)
with Consumer(bootstrap=sys.argv[1], topics=["orders"], from_="earliest") as consumer:
    message = consumer.next(60)
    print(message.text(), message.offset)
"""


def build_tools_missing() -> str | None:
    major = int(version("setuptools").partition(".")[0]) if find_spec("setuptools") else 0
    if find_spec("build") and find_spec("Cython") and major >= 77:
        return None
    return "build, cython and setuptools 77 are not all installed: pip install -e '.[dev]'"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist and the plain wheel, which are built quickly."""
    return made(tmp_path_factory.mktemp("packages"), "--no-compiled")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that `make dist` builds."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    return made(tmp_path_factory.mktemp("compiled"))


def made(out: Path, *options: str) -> Path:
    if missing := build_tools_missing():
        pytest.skip(missing)
    finish([sys.executable, str(ROOT / "tools/dist.py"), "--no-isolation", "--out", str(out), *options])
    return out


def finish(command: list[str], *, at_most_s: float = SECONDS_MAX, **more: str) -> str:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MILLPOND_")}
    done = subprocess.run(command, env=kept | more, capture_output=True, text=True, timeout=at_most_s)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


class Environment:
    """An empty virtual environment with millpond's dependencies and the named packages."""

    def __init__(self, folder: Path, *more: str) -> None:
        finish([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        self.bin = folder / "bin"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        for name in sorted(needed(*PROJECT["dependencies"], *more)):
            self._link(name)

    def _link(self, name: str) -> None:
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in sorted(tops):
            if not (self.site / top).exists():
                (self.site / top).symlink_to(Path(str(found.locate_file(top))))

    def install(self, package: Path, *options: str, **more: str) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "install",
            "--no-deps",
            "--no-index",
        ]
        finish([*pip, "--no-cache-dir", *options, str(package)], **more)

    def run(self, program: str, *arguments: str) -> str:
        return finish([str(self.bin / program), *arguments], PYTHONPATH="")


def needed(*requirements: str) -> set[str]:
    """The names of these distributions and of their dependencies."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in names or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        names.add(requirement.name)
        waiting += [Requirement(text) for text in distribution(requirement.name).requires or ()]
    return names


def check_that_it_serves(environment: Environment, folder: Path, kernel: str) -> None:
    """Start a node of the installed package, and send and read records with the installed client."""
    assert environment.run("millpond", "--version") == f"Millpond {PROJECT['version']}\n"
    assert re.search(rf"kernel +{kernel}", environment.run("millpond", "version"))
    assert "Running as a service" in environment.run("millpond", "help", "operations")
    where = environment.run("python", "-c", "import millpond; print(millpond.__file__)")
    assert where.startswith(str(environment.site))
    with subprocess.Popen(
        [environment.bin / "millpond", "up", "--data", folder / "pond", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    ) as node:
        try:
            assert node.stdout is not None
            panel = []
            for line in node.stdout:
                panel.append(line)
                if line.strip().startswith("stop"):
                    break
            address = re.search(r"listens on +(\S+)", "".join(panel))
            assert address, panel
            assert environment.run("python", "-c", CLIENT, address[1]) == '{"cups":2} 0\n'
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0
        finally:
            node.kill()


def shipped() -> set[str]:
    """The source files that a wheel must have: all except build inputs and outputs."""
    kept = (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix not in NOT_SHIPPED)
    names = {path.relative_to(ROOT / "src").as_posix() for path in kept}
    return {name for name in names if ".egg-info/" not in name and name != STUB}


def pages() -> set[str]:
    """The output of `millpond help`."""
    return {page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/*.md")}


def test_the_plain_wheel_has_the_sources_and_nothing_else(packages: Path) -> None:
    wheel = zipfile.ZipFile(one(packages, "*-py3-none-any.whl"))
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == shipped() | {STUB} | {f"millpond/{page}" for page in pages()}
    assert {"millpond/py.typed", "millpond/wire/schemas/k00_produce.schema"} <= names


def test_the_wheel_declares_its_dependencies_and_extras(packages: Path) -> None:
    wheel = zipfile.ZipFile(one(packages, "*-py3-none-any.whl"))
    (name,) = (each for each in wheel.namelist() if each.endswith("METADATA"))
    facts = email.message_from_bytes(wheel.read(name))
    assert facts["Version"] == PROJECT["version"]
    assert facts["Requires-Python"] == PROJECT["requires-python"]
    extras = PROJECT["optional-dependencies"]
    assert set(facts.get_all("Provides-Extra", [])) == set(extras)
    declared = {Requirement(each).name for each in facts.get_all("Requires-Dist", [])}
    assert declared == {Requirement(each).name for each in sum(extras.values(), PROJECT["dependencies"])}


def test_the_sdist_has_all_build_inputs_and_nothing_else(packages: Path) -> None:
    with tarfile.open(one(packages, "*.tar.gz")) as sdist:
        names = {each.name.partition("/")[2] for each in sdist.getmembers() if each.isfile()}
    sources = {name.removeprefix("src/") for name in names if name.startswith("src/") and ".egg-info/" not in name}
    compiled = {name for name in sources if name.endswith((".pyx", ".pxi"))}
    assert sources - compiled == shipped()
    files = (*(f"{name}.pyx" for name in ROOMS), *(f"{name}.pxi" for name in PARTS))
    assert compiled == {f"millpond/wire/kernel/{name}" for name in files}
    beside = {name for name in names if not name.startswith("src/")}
    others = {"CHANGELOG.md", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert beside == others | pages() | {"tools/wire_stub.py"}


def test_the_plain_wheel_serves_in_an_empty_environment(packages: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(one(packages, "*-py3-none-any.whl"))
    check_that_it_serves(environment, tmp_path, "plain Python")


@with_time
def test_the_compiled_wheel_is_for_every_python_and_serves(compiled: Path, tmp_path: Path) -> None:
    wheel = one(compiled, "*-cp311-abi3-linux_*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    rooms = {f"millpond/wire/kernel/{name}.abi3.so" for name in ROOMS}
    assert names == shipped() | rooms | {STUB} | {f"millpond/{page}" for page in pages()}
    environment = Environment(tmp_path / "venv")
    environment.install(wheel)
    check_that_it_serves(environment, tmp_path, "compiled")


@with_time
def test_the_compiled_kernel_of_the_wheel_passes_its_tests(compiled: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", "pytest", "hypothesis", "psutil")
    environment.install(one(compiled, "*-cp311-abi3-linux_*.whl"))
    # Without the repository's settings: its plugins are not in this environment.
    options = (
        "-q",
        "-c",
        os.devnull,
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    )
    told = environment.run("python", "-m", "pytest", *options, str(ROOT / "tests/wire/kernel"))
    assert "passed" in told


@with_time
@pytest.mark.parametrize("has_compiler", [True, False], ids=["with a compiler", "without one"])
def test_the_sdist_serves_in_an_empty_environment(packages: Path, tmp_path: Path, has_compiler: bool) -> None:
    if has_compiler and shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    environment = Environment(tmp_path / "venv", "setuptools", "cython")
    path = os.environ["PATH"] if has_compiler else str(environment.bin)
    environment.install(one(packages, "*.tar.gz"), "--no-build-isolation", PATH=path)
    check_that_it_serves(environment, tmp_path, "compiled" if has_compiler else "plain Python")


@with_time
def test_the_wheel_is_installed_with_dependencies_from_a_registry(packages: Path, tmp_path: Path) -> None:
    finish([sys.executable, "-m", "venv", str(tmp_path / "venv")])
    python = str(tmp_path / "venv/bin/python")
    ask = [
        python,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-q",
        "-d",
        str(tmp_path / "asked"),
        "--retries",
        "0",
        "click",
    ]
    if subprocess.run(
        ask, capture_output=True, timeout=60, env={**os.environ, "PIP_DEFAULT_TIMEOUT": "10"}
    ).returncode:
        pytest.skip("no package registry answers here")
    wheel = one(packages, "*-py3-none-any.whl")
    finish([python, "-m", "pip", "install", "-q", f"{wheel}[client]"])
    assert "No broken requirements" in finish([python, "-m", "pip", "check"])
    environment = Environment.__new__(Environment)
    environment.bin = tmp_path / "venv/bin"
    environment.site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    check_that_it_serves(environment, tmp_path, "plain Python")
