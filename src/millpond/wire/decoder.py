"""Generates decoders.

A decoder reads from `buffer` (a memoryview) at `p` up to `end`, and stores directly into the attributes of new
objects. Every length and count is checked against the remaining bytes before anything is allocated, and all counts
together, including those of tagged fields, against `left`, the number of items that the message may still have.
Invalid bytes raise `Bad`, `struct.error`, `IndexError` or `UnicodeDecodeError`; the caller turns these into
MalformedMessage.
"""

from __future__ import annotations

import struct

from millpond.wire.generator import Generator, Source, default_expression, minimal_size
from millpond.wire.notation import Field, Struct
from millpond.wire.runtime import FIXED, STEP_BYTES, STEP_ITEMS, STRING_LENGTH_MAX


class DecoderGenerator(Generator):
    """Generates `def decode(buffer, p, end, left)`, which returns the message and the position after it."""

    def generate(self) -> Source:
        self.source.lines.append("def decode(buffer, p, end, left):")
        self.source.fields.append("")
        self.begin_steps()
        if self.in_steps:
            self.emit(f"step_end = p + {STEP_BYTES}")
        target = self.fresh("o")
        self.emit(f"{target} = new({self.class_name(self.message.root)})")
        self.struct(self.message.root, target)
        self.flush()
        self.emit(f"return {target}, p")
        return self.source

    def flush(self) -> None:
        if not self.run.formats:
            return
        name, run = self.take_run()
        packer = self.source.names[name]
        assert isinstance(packer, struct.Struct)
        self.emit_run(f"{', '.join(run.values)}, = {name}.unpack_from(buffer, p)", run)
        self.emit(f"p += {packer.size}")
        for text in run.then:
            self.emit(text)

    def end_step(self) -> None:
        self.emit(f"if not turn or p > step_end: turn = {STEP_ITEMS}; step_end = p + {STEP_BYTES}; yield")

    def struct(self, struct_: Struct, target: str) -> None:
        """Read the fields of a structure into the attributes of `target`; the last run may still be pending."""
        for each in struct_.fields:
            self.path.append(each.name)
            if not each.versions.has(self.version) or (each.tag is not None and self.flexible):
                class_name = self.class_name(each.struct) if each.struct and not each.is_array else ""
                self.emit(f"{target}.{each.name} = {default_expression(each, class_name)}")
            else:
                self.value(each, f"{target}.{each.name}")
            self.path.pop()
        if self.flexible:
            self.path.append("tags")
            self.tags(self.present(struct_, tagged=True), target)
            self.path.pop()

    def value(self, each: Field, target: str) -> None:
        if each.is_array:
            self.array(each, target)
        elif each.struct is not None:
            self.single_struct(each, each.struct, target)
        elif each.type == "uuid":
            raw = self.fresh("u")
            self.add("16s", raw)
            self.run.then.append(f"{target} = uuid({raw})")
        elif each.type in FIXED:
            self.add(FIXED[each.type], target)
        else:
            self.blob(each.type, each.is_nullable(self.version), target)

    def length(self, wide: str) -> None:
        """Read a length or a count into `n`, where -1 means null."""
        if self.flexible:
            self.add("B", "n")
            self.flush()
            self.emit("if n > 127: n, p = longer(buffer, p, n)")
            self.emit("n -= 1")
        else:
            self.add(wide, "n")
            self.flush()

    def blob(self, type_: str, nullable: bool, target: str) -> None:
        self.length("h" if type_ == "string" else "i")
        take = {
            "string": "str(buffer[p:q], 'utf-8')",
            "bytes": "bytes(buffer[p:q])",
            "records": "buffer[p:q]",
        }[type_]
        if nullable:
            self.emit(f"if n == -1: {target} = None")
            self.emit("else:")
            self.depth += 1
        self.emit("q = p + n")
        bound = f"not 0 <= n <= {STRING_LENGTH_MAX}" if type_ == "string" else "n < 0"
        self.emit(f"if {bound} or q > end: raise beyond(n, end - p)")
        self.emit(f"{target} = {take}")
        self.emit("p = q")
        if nullable:
            self.depth -= 1

    def single_struct(self, each: Field, struct_: Struct, target: str) -> None:
        inner = self.fresh("o")
        if not each.is_nullable(self.version):
            self.emit(f"{inner} = {target} = new({self.class_name(struct_)})")
            self.struct(struct_, inner)
            return
        self.add("b", "n")
        self.flush()
        self.emit(f"if n < 0: {target} = None")
        self.emit("else:")
        self.depth += 1
        self.emit(f"{inner} = {target} = new({self.class_name(struct_)})")
        self.struct(struct_, inner)
        self.flush()
        self.depth -= 1

    def array(self, each: Field, target: str) -> None:
        self.length("i")
        size = minimal_size(each, self.message, self.version)
        assert size > 0, f"{self.message.name}.{each.name} has elements of no size"
        if each.is_nullable(self.version):
            self.emit(f"if n == -1: {target} = None")
            self.emit("else:")
            self.depth += 1
        self.emit(f"if n < 0 or n * {size} > end - p: raise beyond(n, end - p)")
        self.emit("left -= n")
        self.emit("if left < 0: raise too_many()")
        if each.type in FIXED and each.type != "uuid":
            self.emit(f"{target} = list(arrays_{each.type}[n].unpack_from(buffer, p))")
            self.emit(f"p += n * {size}")
        else:
            self.loop(each, target)
        if each.is_nullable(self.version):
            self.depth -= 1

    def loop(self, each: Field, target: str) -> None:
        items = self.fresh("a")
        self.emit(f"{items} = {target} = []")
        self.emit("for _ in range(n):")
        self.depth += 1
        if each.struct is not None:
            item = self.fresh("o")
            self.emit(f"{item} = new({self.class_name(each.struct)})")
            self.struct(each.struct, item)
        elif each.type == "uuid":
            item = self.fresh("u")
            self.add("16s", item)
            self.run.then.append(f"{item} = uuid({item})")
        else:
            item = self.fresh("v")
            self.blob(each.type, False, item)
        self.flush()
        self.emit(f"{items}.append({item})")
        self.end_item()
        self.depth -= 1

    def tags(self, fields: list[Field], target: str) -> None:
        number = self.fresh("t")
        self.add("B", number)
        self.flush()
        if not fields:
            self.emit(f"if {number}: p, left = skip_tags(buffer, p, end, {number}, left)")
            return
        self.emit(f"if {number}:")
        self.depth += 1
        self.emit(f"if {number} > 127: {number}, p = longer(buffer, p, {number})")
        self.emit(f"if {number} * 2 > end - p: raise beyond({number}, end - p)")
        self.emit(f"left -= {number}")
        self.emit("if left < 0: raise too_many()")
        stop = self.fresh("e")
        self.emit(f"for _ in range({number}):")
        self.depth += 1
        self.emit(f"tag, {stop}, p = open_tag(buffer, p, end)")
        branch = "if"
        for each in fields:
            self.path[-1] = each.name
            self.emit(f"{branch} tag == {each.tag}:")
            self.depth += 1
            self.value(each, f"{target}.{each.name}")
            self.flush()
            self.emit(f"if p != {stop}: raise uneven(p, {stop})")
            self.depth -= 1
            branch = "elif"
        self.path[-1] = "tags"
        self.emit(f"else: p = {stop}")
        self.depth -= 2
