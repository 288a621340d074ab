"""`make dist`: build an sdist and two wheels into dist/, or the folder of --out.

One wheel has the compiled kernel for this platform and every Python from 3.11 on, the other runs anywhere without it.
Both are built from the sdist, which proves that it is complete.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="make dist", description="Build the sdist and the wheels of this version.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="output folder  [dist]")
    parser.add_argument(
        "--no-isolation", action="store_true", help="build with installed packages; needs no package index"
    )
    parser.add_argument("--no-compiled", action="store_true", help="skip the wheel with the compiled kernel")
    arguments = parser.parse_args()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        parser.error(f"--out {arguments.out} cannot be used: {fault.strerror}")
    for old in (*arguments.out.glob("millpond-*.whl"), *arguments.out.glob("millpond-*.tar.gz")):
        old.unlink()
    sdist = source_package(arguments.out, arguments.no_isolation)
    packages = [sdist]
    if not arguments.no_compiled:
        wheel = wheel_of(sdist, arguments.out, "MILLPOND_ABI3", arguments.no_isolation)
        if any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()):
            packages.append(wheel)
        else:
            wheel.unlink()
            print("No working compiler (gcc, clang): the wheel with the compiled kernel is missing.", file=sys.stderr)
    packages.append(wheel_of(sdist, arguments.out, "MILLPOND_PLAIN", arguments.no_isolation))
    for each in packages:
        print(f"{each.stat().st_size:>9,} bytes  {os.path.relpath(each)}")
    return 0


def source_package(out: Path, no_isolation: bool) -> Path:
    """Build in a copy, because a build leaves files next to the sources."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(
            ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
        )
        (copy / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "wire_stub.py", copy / "tools")
        shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("decisions"))
        options = ["--no-isolation"] if no_isolation else []
        command = [sys.executable, "-m", "build", "--sdist", *options, "--outdir", str(out.resolve()), folder]
        run(command, MILLPOND_PLAIN="1")  # an sdist has the kernel's sources, compiled or not
    return next(out.glob("millpond-*.tar.gz"))


def wheel_of(sdist: Path, out: Path, kind: str, no_isolation: bool) -> Path:
    before = set(out.glob("*.whl"))
    options = ["--no-build-isolation", "--no-index"] if no_isolation else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", *options, "-w", str(out)]
    run([*command, str(sdist)], **{kind: "1"})
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def run(command: list[str], **more: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    result = subprocess.run(command, env=environment | more, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{result.stdout}{result.stderr}\nFailed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
