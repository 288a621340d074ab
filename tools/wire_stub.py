"""Write src/millpond/wire/messages.pyi from the schemas, for type checkers and editors.

The classes of wire/messages.py are built on first use, so nothing else declares them. The stub is not in git: an
install, a wheel build and `make check` write it. Needs nothing but Python, so that it runs in a build environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))  # Millpond may not be installed yet

from millpond.wire import notation  # noqa: E402

WIRE = SOURCE / "millpond" / "wire"
STUB = WIRE / "messages.pyi"

PYTHON_TYPES = {"bool": "bool", "float64": "float", "uuid": "UUID", "string": "str", "bytes": "bytes"}

HEAD = """\
# Written by tools/wire_stub.py from the schemas; do not edit.
from typing import ClassVar, TypeAlias
from uuid import UUID

from millpond.base.ports import Buffer, ReplyPart
from millpond.wire.model import Message as Message
from millpond.wire.model import Struct as Struct

Records: TypeAlias = ReplyPart | list[ReplyPart]

def request_class(api_key: int) -> type[Message]: ...
def response_class(api_key: int) -> type[Message]: ...
def names() -> list[str]: ...
def load() -> None: ...
"""


def python_type(field: notation.Field, message: notation.Message) -> str:
    """The annotation of a field. Requests only ever carry records in memory; replies may leave them in files."""
    if field.struct is not None:
        found = f"{message.name}.{field.struct.name}"
    elif field.type == "records":
        found = "Buffer" if message.kind == "request" else "Records"
    else:
        found = PYTHON_TYPES.get(field.type, "int")
    if field.is_array:
        found = f"list[{found}]"
    return f"{found} | None" if field.nullable else found


def struct_lines(struct: notation.Struct, message: notation.Message, indent: str) -> list[str]:
    """The attributes and the constructor of one structure."""
    if not struct.fields:
        return [f"{indent}def __init__(self) -> None: ..."]
    typed = [(field.name, python_type(field, message)) for field in struct.fields]
    lines = [f"{indent}{name}: {type_}" for name, type_ in typed]
    lines += [f"{indent}def __init__(", f"{indent}    self,", f"{indent}    *,"]
    lines += [f"{indent}    {name}: {type_} = ...," for name, type_ in typed]
    return [*lines, f"{indent}) -> None: ..."]


def message_lines(message: notation.Message) -> list[str]:
    lines = ["", f"class {message.name}(Message):"]
    if message.kind in ("request", "response", "record"):
        lines.append("    API_KEY: ClassVar[int]")
    for struct in message.structs:
        lines += [f"    class {struct.name}(Struct):", *struct_lines(struct, message, " " * 8), ""]
    return [*lines, *struct_lines(message.root, message, "    ")]


def stub() -> str:
    parsed = [
        message for path in sorted(WIRE.glob("schemas/**/*.schema")) for message in notation.parse(path.read_text())
    ]
    lines = [line for message in parsed for line in message_lines(message)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    STUB.write_text(stub())
