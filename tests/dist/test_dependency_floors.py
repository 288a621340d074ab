"""The declared dependencies admit no version with a known vulnerability."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())


def requirements(name: str) -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    project = PROJECT["project"]
    texts = [*PROJECT["build-system"]["requires"], *project["dependencies"], *(e for x in extras for e in x)]
    return [each for each in map(Requirement, texts) if each.name.lower() == name]


@pytest.mark.parametrize(
    ("name", "vulnerable"),
    [
        ("pyjwt", "2.10.0"),  # CVE-2024-53861: part of an issuer passes as the issuer
        ("pyjwt", "2.11.0"),  # CVE-2026-32597: unknown `crit` headers are ignored
        ("h11", "0.14.0"),  # CVE-2025-43859: request smuggling
        ("cryptography", "42.0.3"),  # CVE-2024-26130: NULL dereference
        ("cryptography", "44.0.0"),  # CVE-2024-12797: the OpenSSL in its wheels
        ("cryptography", "46.0.4"),  # CVE-2026-26007: points of small order
        ("starlette", "0.49.0"),  # CVE-2025-62727: a Range header that takes quadratic time, at static files
        ("setuptools", "78.1.0"),  # CVE-2025-47273: path traversal
    ],
)
def test_vulnerable_version_is_not_admitted(name: str, vulnerable: str) -> None:
    specifiers = requirements(name)
    assert specifiers, f"pyproject.toml has no floor for {name}"
    assert not [str(each) for each in specifiers if each.specifier.contains(vulnerable)]
