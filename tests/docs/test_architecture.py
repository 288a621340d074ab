"""docs/ARCHITECTURE.md names files that exist, every package and every folder of the broker."""

from __future__ import annotations

import re

import pytest

from support.pages import ROOT

TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "millpond"
PACKAGES = sorted(each.parent.name for each in SOURCE.glob("*/__init__.py"))
BROKER_FOLDERS = sorted(each.parent.name for each in (SOURCE / "broker").glob("*/__init__.py"))
PATH = re.compile(rf"`((?:tests|{'|'.join(PACKAGES)})/[\w/.]*)`")


def section(heading: str) -> str:
    return TEXT.partition(f"{heading}\n")[2].partition("\n##")[0]


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_every_named_path_exists(path: str) -> None:
    assert (ROOT / path if path.startswith("tests/") else SOURCE / path).exists()


def test_every_package_has_a_row() -> None:
    table = section("## Packages")
    assert [each for each in PACKAGES if f"| `{each}` |" not in table] == []


def test_every_package_row_names_existing_files() -> None:
    missing = []
    for package, _, files in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", section("## Packages"), re.MULTILINE):
        missing += [
            f"{package}/{each}"
            for each in re.findall(r"`([\w/.]+)`", files)
            if not (SOURCE / package / each).exists()
        ]
    assert missing == []


def test_every_folder_of_the_broker_has_a_row() -> None:
    table = section("### Folders of the broker")
    assert [each for each in BROKER_FOLDERS if f"| `{each}/` |" not in table] == []
    named = re.findall(r"^\| `([\w./]+)` \|", table, re.MULTILINE)
    assert [each for each in named if not (SOURCE / "broker" / each).exists()] == []
