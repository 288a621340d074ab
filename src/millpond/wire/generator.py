"""Turns a message and a version into flat Python source: one function to decode it, one to encode it.

All structures are inlined into loops of one function. Adjacent fixed-size fields, together with the length that
precedes the next variable one, become a single precompiled `struct`. Checks in the source never name a field:
`Source.fields` maps each line to its field, for error messages.

This file has what both sides share, and the constructors; `decoder.py` and `encoder.py` generate the two functions.
Names in generated code come from `runtime.py`.
"""

from __future__ import annotations

import struct
from dataclasses import field
from itertools import count

from millpond.base.values import dataclass
from millpond.wire.notation import Field, Message, Struct
from millpond.wire.runtime import FIXED, STEP_ITEMS


@dataclass(slots=True)
class Source:
    """Generated text, the field of each line, and the objects that it references."""

    lines: list[str]
    fields: list[str]
    names: dict[str, object]
    structs: dict[str, Struct]
    """Names of the classes of these structures."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(slots=True)
class Run:
    """Adjacent fixed-size fields that are to be packed or unpacked as one."""

    formats: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    then: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Generator:
    """What decoder and encoder share: lines with their fields, unique names, the pending run.

    With `in_steps` the function is a generator, which yields after a number of list items or bytes.
    """

    def __init__(self, message: Message, version: int, *, in_steps: bool = False) -> None:
        self.message = message
        self.version = version
        self.in_steps = in_steps
        self.flexible = message.is_flexible(version)
        self.source = Source([], [], {}, {})
        self.run = Run()
        self.depth = 1
        self.path: list[str] = []
        self._numbers = count()
        self._packers: dict[str, str] = {}

    def emit(self, text: str) -> None:
        self.source.lines.append("    " * self.depth + text)
        self.source.fields.append(".".join(self.path))

    def begin_steps(self) -> None:
        if self.in_steps:
            self.emit(f"turn = {STEP_ITEMS}")
            # A message without lists has one step.
            self.emit("if not turn: yield")

    def end_item(self) -> None:
        """One item of a list has been read or written."""
        if self.in_steps:
            self.emit("turn -= 1")
            self.end_step()

    def end_step(self) -> None:
        """Yield if enough items, or bytes, have been read or written."""
        raise NotImplementedError

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def add(self, format_: str, value: str) -> None:
        self.run.formats.append(format_)
        self.run.values.append(value)
        self.run.paths.append(".".join(self.path))

    def take_run(self) -> tuple[str, Run]:
        """The pending run and the name of its packer or unpacker; starts a new run."""
        run, self.run = self.run, Run()
        format_ = ">" + "".join(run.formats)
        name = self._packers.get(format_)
        if name is None:
            name = self._packers[format_] = f"S{len(self._packers)}"
            self.source.names[name] = struct.Struct(format_)
        return name, run

    def class_name(self, struct_: Struct) -> str:
        name = f"C_{struct_.name}"
        self.source.structs[name] = struct_
        return name

    def present(self, struct_: Struct, *, tagged: bool) -> list[Field]:
        return [
            each
            for each in struct_.fields
            if each.versions.has(self.version) and (each.tag is not None and self.flexible) == tagged
        ]

    def emit_run(self, text: str, run: Run) -> None:
        """A line about all fields of a run."""
        first, last = run.paths[0], run.paths[-1]
        self.source.lines.append("    " * self.depth + text)
        self.source.fields.append(first if first == last else f"{first} to {last}")


def minimal_size(each: Field, message: Message, version: int) -> int:
    """The fewest bytes that one element (of an array field) or one value of this type can take."""
    if each.struct is not None:
        return minimal_struct_size(each.struct, message, version)
    if each.type in FIXED:
        return struct.calcsize(">" + FIXED[each.type])
    if message.is_flexible(version):
        return 1
    return 2 if each.type == "string" else 4


def minimal_struct_size(struct_: Struct, message: Message, version: int) -> int:
    flexible = message.is_flexible(version)
    size = 1 if flexible else 0
    for each in struct_.fields:
        if not each.versions.has(version) or (each.tag is not None and flexible):
            continue
        if each.is_array:
            size += 1 if flexible else 4
        elif each.struct is not None and each.is_nullable(version):
            size += 1
        else:
            size += minimal_size(each, message, version)
    return size


def default_expression(each: Field, class_name: str) -> str:
    """Source for a new default value."""
    if each.struct is not None and not each.is_array and each.nullable is None:
        return f"{class_name}()"
    if each.type == "uuid" and not each.is_array:
        return "ZERO"
    return repr(each.default)


def constructor_lines(struct_: Struct) -> list[str]:
    """Source of `init_<Name>`, the keyword constructor of a structure."""
    plain: list[str] = []
    stores: list[str] = []
    for each in struct_.fields:
        default = default_expression(each, f"C_{each.type}")
        if default.endswith(("()", "[]")) and default != "()":
            plain.append(f"{each.name}=UNSET")
            stores.append(f"    self.{each.name} = {default} if {each.name} is UNSET else {each.name}")
        else:
            plain.append(f"{each.name}={default}")
            stores.append(f"    self.{each.name} = {each.name}")
    star = "*, " if plain else ""
    return [f"def init_{struct_.name}(self, {star}{', '.join(plain)}):", *(stores or ["    pass"])]
