"""The columns of a topic as a table, and records made into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from millpond.analysis.errors import BadValue
from millpond.analysis.values import ValueForm, is_text
from millpond.base.names import nearest
from millpond.columns.batches import SCHEMA_WITH_HEADERS
from millpond.columns.parser import Parsed, Parser
from millpond.remote.errors import ConfigError

RECORD: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
FAULT: Final = "_fault"
MARK: Final = "_"
"""Before the record's own columns where the fields of its value are beside them."""

Bad = Literal["fail", "null"]


class Layout:
    """Immutable, and so shared by threads."""

    def __init__(
        self,
        form: ValueForm,
        *,
        key_is_text: bool = False,
        bad: Bad = "fail",
        columns: Sequence[str] | None = None,
        mark_always: bool = False,
    ) -> None:
        self._form = form
        self._bad = bad
        is_parsed = form.fields is not None
        mark = MARK if is_parsed or mark_always else ""
        self._own = {mark + each: each for each in RECORD if not (is_parsed and each == "value")}
        kinds = {name: SCHEMA_WITH_HEADERS.field(own).type for name, own in self._own.items()}
        if key_is_text:
            kinds[f"{mark}key"] = pa.string()
        if form.format == "text":
            kinds[f"{mark}value"] = pa.string()
        if is_parsed:
            kinds |= self._parsed_kinds(form)
        self.full: Final = pa.schema(list(kinds.items()))
        """All columns."""
        self._columns = list(self.full.names) if columns is None else _known(columns, self.full.names)
        # By position: looking up a name takes a search, and there may be thousands.
        fields = dict(zip(self.full.names, self.full, strict=True))
        self.schema: Final = pa.schema([fields[each] for each in self._columns])
        """The columns of the batches made."""
        self.with_headers: Final = f"{mark}headers" in self._columns
        asked = set(self._columns)
        wanted = asked.intersection(form.names)
        needs_values = bool(wanted) or FAULT in self._columns
        self._parser: Parser | None = form.parser(wanted) if needs_values and form.names else None

    @property
    def is_parsing(self) -> bool:
        return self._parser is not None

    def batches(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same records in this layout. BadValue, if the layout says so, names the first bad one."""
        for part in [records] if self._parser is None else self._parser.parts(records):
            parsed = self._parsed(part)
            # Their nulls include those of whole rows.
            values = dict(zip(parsed.rows.type.names, parsed.rows.flatten(), strict=True)) if parsed else {}
            faults = parsed.faults if parsed else []
            arrays = [
                values[field.name] if field.name in values else self._own_column(field, part, faults)
                for field in self.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _parsed_kinds(self, form: ValueForm) -> dict[str, pa.DataType]:
        assert form.fields is not None
        kinds = {each.name: each.type.arrow() for each in form.fields}
        if self._bad == "null":
            kinds[FAULT] = pa.string()
        taken = next((each for each in form.names if each in self._own or each == FAULT), None)
        if taken is not None:
            raise ConfigError(
                f"the values have a field {taken}, which is a column of the record itself: give a schema without it"
            )
        return kinds

    def _parsed(self, part: pa.RecordBatch) -> Parsed | None:
        if self._parser is None:
            return None
        parsed = self._parser.parse(part.column("value"))
        if parsed.faults and self._bad == "fail":
            raise self._refusal(part, parsed.faults)
        return parsed

    def _refusal(self, part: pa.RecordBatch, faults: list[tuple[int, str]]) -> BadValue:
        row, reason = faults[0]
        more = f" ({len(faults) - 1} more of {part.num_rows} are bad)" if len(faults) > 1 else ""
        return BadValue(
            f"{_origin(part, row)} does not parse as {self._form.format}: {reason}{more}. Give a schema that fits "
            'all values (a field of type string takes any JSON), or bad="null" to keep such rows with the reason in '
            f"the column {FAULT}"
        )

    def _own_column(self, field: pa.Field, part: pa.RecordBatch, faults: list[tuple[int, str]]) -> pa.Array:
        if field.name == FAULT:
            return _reasons(faults, part.num_rows)
        own = self._own[field.name]
        column = part.column(own)
        return column if column.type == field.type else _text(own, part)


def _known(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    if isinstance(columns, str) or not columns:
        raise ConfigError("columns is a list of one or more names")
    known = set(names)
    for each in columns:
        if each not in known:
            raise ConfigError(f"there is no column {each!r}{nearest(each, names)} There are {', '.join(names)}.")
    return list(dict.fromkeys(columns))


def _origin(part: pa.RecordBatch, row: int) -> str:
    at: dict[str, Any] = {each: part.column(each)[row].as_py() for each in ("topic", "partition", "offset")}
    return f"{at['topic']}[{at['partition']}]@{at['offset']}"


def _text(own: str, part: pa.RecordBatch) -> pa.Array:
    column = part.column(own)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        row = next(row for row, each in enumerate(column.to_pylist()) if not is_text(each))
        raise BadValue(f"{_origin(part, row)}: the {own} is not UTF-8 text: read {own}s as bytes") from None


def _reasons(faults: list[tuple[int, str]], rows: int) -> pa.Array:
    reasons: list[str | None] = [None] * rows
    for row, reason in faults:
        reasons[row] = reason.encode(errors="replace").decode()
    return pa.array(reasons, pa.string())
