"""`make dist`: the packages of this version, in dist/ or where --out says. What somebody else can install.

The sdist first, and from it two wheels: one with the compiled room for this kind of machine and every Python from
3.11 on, and one without it for any machine. Made from the sdist, they show that it has all that a build needs.
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
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="where they go  [dist]")
    parser.add_argument("--no-isolation", action="store_true", help="build with what is installed; asks no registry")
    parser.add_argument("--no-compiled", action="store_true", help="leave out the wheel with the compiled room")
    chosen = parser.parse_args()
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        parser.error(f"--out {chosen.out} cannot be used: {fault.strerror}")
    for old in (*chosen.out.glob("millpond-*.whl"), *chosen.out.glob("millpond-*.tar.gz")):
        old.unlink()
    sdist = source_package(chosen.out, chosen.no_isolation)
    made = [sdist]
    if not chosen.no_compiled:
        wheel = wheel_of(sdist, chosen.out, "MILLPOND_ABI3", chosen.no_isolation)
        if any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()):
            made.append(wheel)
        else:
            wheel.unlink()
            print("No compiler (gcc, clang) that works: there is no wheel with the compiled room.", file=sys.stderr)
    made.append(wheel_of(sdist, chosen.out, "MILLPOND_PLAIN", chosen.no_isolation))
    for each in made:
        print(f"{each.stat().st_size:>9,} bytes  {os.path.relpath(each)}")
    return 0


def source_package(out: Path, no_isolation: bool) -> Path:
    """Built in a copy, as a build leaves its own files beside the sources."""
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
        run(command, MILLPOND_PLAIN="1")  # it has the sources of the compiled room, whether they were compiled or not
    return next(out.glob("millpond-*.tar.gz"))


def wheel_of(sdist: Path, out: Path, kind: str, no_isolation: bool) -> Path:
    before = set(out.glob("*.whl"))
    options = ["--no-build-isolation", "--no-index"] if no_isolation else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", *options, "-w", str(out)]
    run([*command, str(sdist)], **{kind: "1"})
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def run(command: list[str], **more: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    done = subprocess.run(command, env=kept | more, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nThis failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
