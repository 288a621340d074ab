"""Every message of the protocol as a class: `messages.FetchRequest`, `messages.FetchResponse.PartitionData`.

Nothing is parsed at import: a class is built from its schema when it is first named, and the code for one version is
generated and compiled when that version is first decoded or encoded. `messages.pyi` declares all of them to type
checkers; `tools/wire_stub.py` writes it when Millpond is installed or built.

Decoding copies nothing of a `records` field (it is a memoryview into the frame), gives absent fields their defaults,
skips unknown tagged fields, and answers bytes that cannot be with MalformedMessage. Encoding is strict: a value that
the version cannot carry, or of the wrong type, is a ValueError.
"""

from __future__ import annotations

import os
from typing import Any

from millpond.wire import notation
from millpond.wire.header import NAMES
from millpond.wire.model import Message, Struct, build

__all__ = ["Message", "Struct", "load", "names", "request_class", "response_class"]


def request_class(api_key: int) -> type[Message]:
    return _class_of_key(api_key, "Request")


def response_class(api_key: int) -> type[Message]:
    return _class_of_key(api_key, "Response")


def names() -> list[str]:
    """The names of all messages; reads every schema."""
    return sorted({message.name for path in set(_schema_paths().values()) for message in _read(path)})


def __getattr__(name: str) -> Any:
    path = None if name.startswith("_") else _schema_paths().get(name.lower())
    if path is not None:
        for message in _read(path, name):
            # Another thread that builds it at the same time gets the same class.
            return globals().setdefault(name, build(message))
    raise AttributeError(f"the protocol has no message {name!r}")


# The schemas belong to the code, as the modules beside them do; they are read where those are, not through a port.
SCHEMAS = os.path.join(os.path.dirname(__file__), "schemas")
SUFFIX = ".schema"
_paths: dict[str, str] = {}
_texts: dict[str, str] = {}


def load() -> None:
    """Read all schemas now. A process that serves may find later that no more files can be opened."""
    for path in _schema_paths().values():
        if path not in _texts:
            _texts[path] = _text_of(path)


def _read(path: str, only: str | None = None) -> list[notation.Message]:
    return notation.parse(_texts.get(path) or _text_of(path), only)


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _schema_paths() -> dict[str, str]:
    """Where each message is declared, by its name in small letters, told from the names of the files alone."""
    if _paths:
        return _paths
    paths: dict[str, str] = {}
    for entry in os.listdir(SCHEMAS):
        path = os.path.join(SCHEMAS, entry)
        if entry.endswith(SUFFIX):
            stem = entry.removesuffix(SUFFIX).partition("_")[2].replace("_", "")
            paths[stem + "request"] = paths[stem + "response"] = path
        else:
            for inner in os.listdir(path):
                stem = inner.removesuffix(SUFFIX).replace("_", "")
                paths.update({stem + suffix: os.path.join(path, inner) for suffix in ("", "key", "value")})
    # All at once: another thread must not find half of them.
    _paths.update(paths)
    return _paths


def _class_of_key(api_key: int, kind: str) -> type[Message]:
    """KeyError when there is no such key."""
    name = NAMES[api_key] + kind
    message: type[Message] = globals().get(name) or __getattr__(name)
    return message
