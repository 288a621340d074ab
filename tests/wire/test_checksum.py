"""The checksum is the package's own, however it was loaded."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.wire import checksum


def test_the_check_value_of_the_polynomial() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300))
def test_agrees_with_the_package(data: bytes) -> None:
    assert checksum.crc32c(memoryview(data)) == package.crc32c(data)


def test_falls_back_to_the_package_where_the_extension_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    assert checksum._load()(b"123456789") == 0xE3069283


def test_does_not_bring_the_package_along() -> None:
    code = "import sys, millpond.wire.checksum; sys.exit('crc32c' in sys.modules or 'argparse' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
