"""The Prometheus text format (version 0.0.4).

The samples of a family are kept together, in whatever order they are added. `seal` encodes the samples added since
the last call, so that the text of ten thousand partitions is never built in one go.
"""

from __future__ import annotations

from typing import Final

from millpond.base.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**named: object) -> str:
    """The label set that follows the name of a family; "" if there are no labels."""
    if not named:
        return ""
    listed = ",".join(f'{name}="{escaped(str(value))}"' for name, value in named.items())
    return f"{{{listed}}}"


def escaped(text: str) -> str:
    return text.translate(_ESCAPES)


class Family:
    """A metric name with its help text and samples."""

    __slots__ = ("_name", "_parts", "_rows")

    def __init__(self, name: str, kind: str, meaning: str) -> None:
        self._name = name
        self._rows: list[str] = []
        self._parts = [f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n".encode()]

    def add(self, value: float, labelled: str = "") -> None:
        """`labelled` is a result of `labels`."""
        self._rows.append(f"{self._name}{labelled} {value}\n")

    def add_histogram(self, histogram: Histogram, **named: object) -> None:
        name, rows = self._name, self._rows
        plain = labels(**named)
        before = plain[:-1] + "," if plain else "{"
        for seconds, count in histogram.cumulative():
            rows.append(f'{name}_bucket{before}le="{seconds:g}"}} {count}\n')
        count = histogram.count
        rows.append(f'{name}_bucket{before}le="+Inf"}} {count}\n')
        rows.append(f"{name}_sum{plain} {histogram.sum_us / 1e6}\n")
        rows.append(f"{name}_count{plain} {count}\n")

    def seal(self) -> list[bytes]:
        if self._rows:
            self._parts.append("".join(self._rows).encode(errors="replace"))
            self._rows = []
        return self._parts


class Exposition:
    """One page: families in the order in which they were first added."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def gauge(self, name: str, meaning: str) -> Family:
        """A value that goes up and down."""
        return self._family(name, "gauge", meaning)

    def counter(self, name: str, meaning: str) -> Family:
        """A value that only grows while the process runs."""
        assert name.endswith("_total"), name
        return self._family(name, "counter", meaning)

    def histogram(self, name: str, meaning: str) -> Family:
        return self._family(name, "histogram", meaning)

    def _family(self, name: str, kind: str, meaning: str) -> Family:
        assert name not in self._families, f"{name} is named twice"
        family = self._families[name] = Family(name, kind, meaning)
        return family

    def seal(self) -> None:
        for family in self._families.values():
            family.seal()

    def parts(self) -> list[bytes]:
        return [part for family in self._families.values() for part in family.seal()]
