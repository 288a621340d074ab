"""Every message of the protocol as a class: `messages.FetchRequest`, `messages.FetchResponse.PartitionData`.

Nothing is parsed at import: a class is built from its schema when it is first named, and the code for one version is
generated and compiled when that version is first decoded or encoded. `messages.pyi` declares all of them to type
checkers; `tools/wire_stub.py` writes it.

Decoding copies nothing of a `records` field (it is a memoryview into the frame), gives absent fields their defaults,
skips unknown tagged fields, and answers bytes that cannot be with MalformedMessage. Encoding is strict: a value that
the version cannot carry, or of the wrong type, is a ValueError.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from millpond.wire import notation
from millpond.wire.model import Message, Struct, build

__all__ = ["Message", "Struct", "names", "request_class", "response_class"]


def request_class(api_key: int) -> type[Message]:
    return _class_of_key(api_key, "request")


def response_class(api_key: int) -> type[Message]:
    return _class_of_key(api_key, "response")


def names() -> list[str]:
    """The names of all messages; reads every schema."""
    found = {message.name for path in set(_schema_paths().values()) for message in notation.parse(path.read_text())}
    return sorted(found)


def __getattr__(name: str) -> Any:
    path = None if name.startswith("_") else _schema_paths().get(name.lower())
    if path is not None:
        for message in notation.parse(path.read_text()):
            if message.name == name:
                built = build(message)
                globals()[name] = built
                return built
    raise AttributeError(f"the protocol has no message {name!r}")


_paths: dict[str, Traversable] = {}


def _schema_paths() -> dict[str, Traversable]:
    """Where each message is declared, by its name in small letters, told from the names of the files alone."""
    if not _paths:
        root = files("millpond.wire") / "schemas"
        for entry in root.iterdir():
            if entry.is_dir():
                for inner in entry.iterdir():
                    stem = inner.name.removesuffix(".schema").replace("_", "")
                    _paths.update({stem + suffix: inner for suffix in ("", "key", "value")})
            else:
                key, _, stem = entry.name.removesuffix(".schema").partition("_")
                squeezed = stem.replace("_", "")
                for kind in ("request", "response"):
                    _paths[squeezed + kind] = entry
                    _paths[f"{int(key[1:])} {kind}"] = entry
    return _paths


def _class_of_key(api_key: int, kind: str) -> type[Message]:
    path = _schema_paths().get(f"{api_key} {kind}")
    if path is None:
        raise KeyError(f"the protocol has no {kind} with key {api_key}")
    stem = path.name.removesuffix(".schema").partition("_")[2]
    name = "".join(word.capitalize() for word in stem.split("_")) + kind.capitalize()
    found: type[Message] = globals().get(name) or __getattr__(name)
    return found
