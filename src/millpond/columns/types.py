"""The types of parsed values, which are those of Spark's schemas, and the Arrow types of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class DataType:
    """Base of all types."""

    name: ClassVar[str] = ""

    @property
    def text(self) -> str:
        """The type as a schema writes it."""
        return self.name

    def arrow(self) -> pa.DataType:
        """The type of its column."""
        import pyarrow as pa

        return getattr(pa, _ARROW[self.name])()


class BooleanType(DataType):
    name = "boolean"


class ByteType(DataType):
    name = "tinyint"


class ShortType(DataType):
    name = "smallint"


class IntegerType(DataType):
    name = "int"


class LongType(DataType):
    name = "bigint"


class FloatType(DataType):
    name = "float"


class DoubleType(DataType):
    name = "double"


class StringType(DataType):
    name = "string"


class BinaryType(DataType):
    name = "binary"


class DateType(DataType):
    name = "date"


class TimestampType(DataType):
    """A moment, in UTC."""

    name = "timestamp"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.timestamp("us", "UTC")


class TimestampNTZType(DataType):
    """A time without a zone."""

    name = "timestamp_ntz"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.timestamp("us")


@dataclass(frozen=True)
class DecimalType(DataType):
    precision: int
    scale: int

    @property
    def text(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True)
class OtherType(DataType):
    """A type of Spark's that values cannot be read as."""

    spark: str

    @property
    def text(self) -> str:
        return self.spark

    def arrow(self) -> pa.DataType:
        raise AssertionError(f"{self.spark} was not refused when the schema was read")


@dataclass(frozen=True)
class ArrayType(DataType):
    element: DataType
    has_nulls: bool = True

    @property
    def text(self) -> str:
        return f"array<{self.element.text}>"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.field("element", self.element.arrow(), self.has_nulls))


@dataclass(frozen=True)
class MapType(DataType):
    key: DataType
    value: DataType
    has_nulls: bool = True

    @property
    def text(self) -> str:
        return f"map<{self.key.text},{self.value.text}>"

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        key = pa.field("key", self.key.arrow(), nullable=False)
        return pa.map_(key, pa.field("value", self.value.arrow(), self.has_nulls))


@dataclass(frozen=True)
class StructField:
    name: str
    type: DataType
    nullable: bool = True


@dataclass(frozen=True)
class StructType(DataType):
    fields: Sequence[StructField]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> StructField:
        return next(each for each in self.fields if each.name == name)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.fields]

    @property
    def text(self) -> str:
        return f"struct<{','.join(f'{each.name}:{each.type.text}' for each in self.fields)}>"

    def arrow(self) -> pa.StructType:
        import pyarrow as pa

        return pa.struct([pa.field(each.name, each.type.arrow(), each.nullable) for each in self.fields])


_ARROW = {
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}

SIMPLE: dict[str, type[DataType]] = {
    "boolean": BooleanType,
    "byte": ByteType,
    "tinyint": ByteType,
    "short": ShortType,
    "smallint": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "bigint": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
"""The names of types without parameters."""


def of_spark_json(described: Any) -> DataType:
    """From Spark's JSON (`{"type": "struct", "fields": […]}`). KeyError, TypeError or ValueError if it is invalid."""
    match described:
        case str():
            return _named(described)
        case {"type": "struct"}:
            return StructType(
                [
                    StructField(str(each["name"]), of_spark_json(each["type"]), bool(each["nullable"]))
                    for each in described["fields"]
                ]
            )
        case {"type": "array"}:
            return ArrayType(of_spark_json(described["elementType"]), bool(described["containsNull"]))
        case {"type": "map"}:
            key, value = of_spark_json(described["keyType"]), of_spark_json(described["valueType"])
            return MapType(key, value, bool(described["valueContainsNull"]))
    raise ValueError(f"{described!r:.60} is not a type")


def _named(name: str) -> DataType:
    if name in SIMPLE:
        return SIMPLE[name]()
    base, _, rest = name.partition("(")
    if base == "decimal" and rest:
        precision, scale = rest.removesuffix(")").split(",")
        return DecimalType(int(precision), int(scale))
    return StringType() if base in ("char", "varchar") and rest else OtherType(name)
