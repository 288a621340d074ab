"""Generates encoders.

An encoder appends to `out`, a bytearray. A `records` field ends it as one part of the response, adds its own parts
without copying, and starts the next. A value that the version cannot carry raises `Missing`; wrong types raise what
Python raises; the caller turns all of these into ValueError with the field's name.
"""

from __future__ import annotations

from millpond.wire.generator import Generator, Run, Source
from millpond.wire.notation import Field, Struct
from millpond.wire.runtime import FIXED, STEP_BYTES, STEP_ITEMS, STRING_LENGTH_MAX

MESSAGE_LENGTH_MAX = STRING_LENGTH_MAX // 4
"""How much of an error message is sent; a character takes at most four bytes."""


class EncoderGenerator(Generator):
    """Generates `def encode(o)`, which returns the message as parts; a `records` field becomes separate parts."""

    tag_depth = 0
    """How many tagged fields enclose the current one."""

    def generate(self) -> Source:
        self.source.lines.append("def encode(o):")
        self.source.fields.append("")
        self.begin_steps()
        self.emit("parts = []")
        self.emit("out = bytearray()")
        self.struct(self.message.root, "o")
        self.flush()
        self.emit("if out or not parts: parts.append(out)")
        self.emit("return parts")
        return self.source

    def end_step(self) -> None:
        if self.tag_depth:
            # Its length comes first, so it stays in one piece.
            self.emit(f"if not turn: turn = {STEP_ITEMS}; yield")
            return
        self.emit(f"if not turn or len(out) > {STEP_BYTES}:")
        self.emit(f"    turn = {STEP_ITEMS}")
        self.emit(f"    if len(out) > {STEP_BYTES}: parts.append(out); out = bytearray()")
        self.emit("    yield")

    def flush(self) -> None:
        match self.run.formats:
            case []:
                return
            case ["B"] | ["x"]:
                run, self.run = self.run, Run()
                self.emit_run(f"out.append({run.values[0] if run.values else 0})", run)
            case _:
                name, run = self.take_run()
                self.emit_run(f"out += {name}.pack({', '.join(run.values)})", run)

    def struct(self, struct_: Struct, holder: str) -> None:
        for each in struct_.fields:
            self.path.append(each.name)
            if not each.versions.has(self.version):
                if not each.ignorable:
                    self.emit(f"if {self.differs(each, f'{holder}.{each.name}')}: raise Missing")
            elif each.tag is None or not self.flexible:
                self.value(each, f"{holder}.{each.name}")
            self.path.pop()
        if self.flexible:
            self.path.append("tags")
            self.tags(self.present(struct_, tagged=True), holder)
            self.path.pop()

    def value(self, each: Field, source: str) -> None:
        if each.is_array:
            self.array(each, source)
        elif each.struct is not None:
            self.single_struct(each, each.struct, source)
        elif each.type == "uuid":
            self.add("16s", f"{source}.int.to_bytes(16)")
        elif each.type in FIXED:
            self.add(FIXED[each.type], source)
        else:
            self.blob(each.type, each.is_nullable(self.version), source)

    def length(self, wide: str) -> None:
        """Write the length or count in `n`, plus one in flexible versions."""
        self.add("B" if self.flexible else wide, "n & 127" if self.flexible else "n")
        self.flush()
        if self.flexible:
            longer = "string_length" if wide == "h" else "varint"
            self.emit(f"if n > 127: out[-1:] = {longer}(n)")

    def blob(self, type_: str, nullable: bool, source: str) -> None:
        value = self.fresh("v")
        one_more = " + 1" if self.flexible else ""
        if type_ == "records":
            self.records(nullable, value, source)
            return
        make = ".encode()" if type_ == "string" else ""
        if make and self.path[-1].endswith("error_message"):
            # It may quote long input from the peer, which must not make the response impossible.
            make = f"[:{MESSAGE_LENGTH_MAX}]{make}"
        null = 0 if self.flexible else -1
        if nullable:
            self.emit(f"{value} = {source}")
            self.emit(f"if {value} is None: {value} = b''; n = {null}")
            more = f"{value} = {value}{make}; " if make else ""
            self.emit(f"else: {more}n = len({value}){one_more}")
        else:
            self.emit(f"{value} = {source}{make}")
            self.emit(f"n = len({value}){one_more}")
        self.length("h" if type_ == "string" else "i")
        self.emit(f"out += {value}")

    def records(self, nullable: bool, value: str, source: str) -> None:
        """Records are not copied: the encoded bytes so far become a part, they become parts, and a new one begins."""
        self.emit(f"{value} = {source}")
        size = f"sum(map(len, {value})) if {value}.__class__ is list else len({value})"
        self.emit(f"k = -1 if {value} is None else {size}" if nullable else f"k = {size}")
        self.emit("n = k + 1" if self.flexible else "n = k")
        self.length("i")
        self.emit("if k > 0:")
        self.emit("    parts.append(out)")
        self.emit(f"    if {value}.__class__ is list: parts += {value}")
        self.emit(f"    else: parts.append({value})")
        self.emit("    out = bytearray()")

    def single_struct(self, each: Field, struct_: Struct, source: str) -> None:
        inner = self.fresh("o")
        self.emit(f"{inner} = {source}")
        if not each.is_nullable(self.version):
            self.struct(struct_, inner)
            return
        self.add("b", f"-1 if {inner} is None else 1")
        self.flush()
        self.emit(f"if {inner} is not None:")
        self.depth += 1
        self.struct(struct_, inner)
        self.flush()
        self.depth -= 1

    def array(self, each: Field, source: str) -> None:
        items = self.fresh("a")
        one_more = " + 1" if self.flexible else ""
        nullable = each.is_nullable(self.version)
        self.emit(f"{items} = {source}")
        size = f"n = len({items}){one_more}"
        if nullable:
            self.emit(f"if {items} is None: {items} = (); n = {0 if self.flexible else -1}")
            self.emit(f"else: {size}")
        else:
            self.emit(size)
        self.length("i")
        if each.type in FIXED and each.type != "uuid":
            self.emit(f"if {items}: out += arrays_{each.type}[len({items})].pack(*{items})")
            return
        item = self.fresh("o")
        self.emit(f"for {item} in {items}:")
        self.depth += 1
        if each.struct is not None:
            self.struct(each.struct, item)
            self.flush()
        elif each.type == "uuid":
            self.emit(f"out += {item}.int.to_bytes(16)")
        else:
            self.blob(each.type, False, item)
        self.end_item()
        self.depth -= 1

    def tags(self, fields: list[Field], holder: str) -> None:
        if not fields:
            self.add("x", "")
            self.run.values.pop()
            return
        held, number, body = self.fresh("h"), self.fresh("t"), self.fresh("b")
        # Pending values were read from attributes, so they may be packed after the tagged fields have been checked.
        waiting, self.run = self.run, Run()
        self.emit(f"{number} = 0")
        self.emit(f"{body} = b''")
        for each in sorted(fields, key=lambda known_field: known_field.tag or 0):
            self.path[-1] = each.name
            self.emit(f"if {self.differs(each, f'{holder}.{each.name}')}:")
            self.depth += 1
            self.emit(f"{held} = out")
            self.emit("out = bytearray()")
            self.tag_depth += 1
            self.value(each, f"{holder}.{each.name}")
            self.flush()
            self.tag_depth -= 1
            self.emit(f"{body} += varint({each.tag}) + varint(len(out)) + out")
            self.emit(f"out = {held}")
            self.emit(f"{number} += 1")
            self.depth -= 1
        self.path[-1] = "tags"
        self.run = waiting
        self.add("B", number)
        self.flush()
        self.emit(f"if {number}: out += {body}")

    def differs(self, each: Field, source: str) -> str:
        """Source code for: this value is not the default."""
        if each.is_array or each.default is None or each.type == "uuid":
            if each.struct is not None and not each.is_array and each.nullable is None:
                parts = [self.differs(inner, f"{source}.{inner.name}") for inner in each.struct.fields]
                return " or ".join(parts)
            if each.default is None:
                return f"{source} is not None"
            if each.type == "uuid" and not each.is_array:
                return f"{source}.int"
            return f"({source} is None or {source})" if each.nullable else f"{source}"
        if each.default is False or each.default == 0:
            return source
        if each.default is True:
            return f"not {source}"
        return f"{source} != {each.default!r}"
