"""Missing or unsupported packages are reported in one line with a command."""

from __future__ import annotations

import pytest

from millpond.spark import versions
from millpond.spark.versions import WrongVersion, check_packages, installed_version, numbers_of

GOOD: dict[str, str] = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pyspark": None}, "pyspark is not installed: pip install 'millpond[spark]'"),
        ({"pyspark": "4.1.9"}, "pyspark 4.1.9 is too old, it must be 4.2 or newer: pip install 'pyspark>=4.2'"),
        ({"pyarrow": None}, "pyarrow is not installed: pip install 'millpond[spark]'"),
        ({"pandas": None}, "pandas is not installed: pip install 'millpond[spark]'"),
        ({"pandas": "3.0.0"}, "pandas 3.0.0 is too new for Spark: pip install 'pandas>=2.2,<3'"),
    ],
)
def test_missing_or_unsupported_packages_are_refused(changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(WrongVersion) as caught:
        check_packages((GOOD | changes).get)
    assert str(caught.value) == message


@pytest.mark.parametrize("pyspark", ["4.2.0", "4.3.0.dev1", "5.0.0", "10.0"])
def test_supported_packages_are_accepted(pyspark: str) -> None:
    check_packages((GOOD | {"pyspark": pyspark}).get)
    check_packages({"pyspark-client": pyspark, "pyarrow": "18", "pandas": "2.2"}.get)


def test_what_is_installed_is_known() -> None:
    assert installed_version("pytest") is not None
    assert installed_version("no-such-package") is None
    assert numbers_of("4.3.0.dev1") == (4, 3, 0)


@pytest.mark.parametrize("module", ["pyspark_millpond", "pyspark_millpond_delta"])
def test_the_formats_check_packages_first(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pytest.importorskip(module, reason="pip install 'millpond[spark]'").DefaultSource
    monkeypatch.setattr(versions, "installed_version", (GOOD | {"pyspark": "4.0.1"}).get)
    with pytest.raises(WrongVersion, match=r"pyspark 4\.0\.1 is too old"):
        source({})
