"""Write docs/client_reference.md from the signatures of the client; `--check` fails when it is out of date.

A parameter's type and default come from the signature, its description from the docstring below its field, which is
required.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millpond.client import options
from millpond.client.consumer import Consumer, ConsumerKwargs
from millpond.client.options import Options, OptionsKwargs, WorkerKwargs
from millpond.client.producer import Producer, ProducerKwargs, SendKwargs
from millpond.client.queue import Queue
from millpond.client.retry import Retry
from millpond.client.worker import Worker

PAGE = Path(__file__).parent.parent / "docs" / "client_reference.md"

INTRODUCTION = """\
# Parameters of the Python client

`tools/client_docs.py` generates this page from the signatures in `src/millpond/client/`. [client.md](client.md)
explains them, with a cookbook. An unknown argument is refused with the nearest known name.
"""

FOR_QUEUES = {
    "topic": "The topic of the jobs.",
    "group": "The share group that receives them. None: this queue only sends.",
    "from_": "Where a new group begins: its `share.auto.offset.reset`, unless it has a value.",
    "serializer": "Turns a value into bytes: a function `(value, topic) -> bytes | None`.",
    "settings": "Further librdkafka settings; those for security apply to receiving too.",
    "max": "The most messages to return.",
    "timeout": "How many seconds to wait for the first one.",
}
"""Parameters of queues that mean something else elsewhere."""

BESIDE = {
    "bootstrap": "The cluster, as `host:port,host:port`; else `MILLPOND_BOOTSTRAP`, else `127.0.0.1:9092`.",
    "when_full": '`"block"`: `send` waits for space in the buffer. `"raise"`: it raises `BufferFull` at once.',
    "full_timeout_s": "How long `send` waits before it raises `BufferFull`.",
    "topics": "The topics to read, at least one.",
    "group": "The consumer group, which owns the committed offsets. None reads all partitions.",
    "topic": "The topic to send to.",
    "value": "Bytes, text, None (a tombstone), or what the serializer accepts: JSON types and typed values.",
    "key": "Text or bytes: records with the same key are in the same partition, in order.",
    "handler": "The function that is called with each record.",
}
"""Parameters without a field that declares them."""

SIGNATURES: tuple[tuple[str, str, Callable[..., Any], tuple[type, ...]], ...] = (
    ("Producer", "`AsyncProducer` takes the same.", Producer.__init__, (ProducerKwargs,)),
    ("Producer.send", "`AsyncProducer.send` and `queue` take the same.", Producer.send, (SendKwargs,)),
    ("Consumer", "`AsyncConsumer` takes the same.", Consumer.__init__, (ConsumerKwargs,)),
    ("Queue", "`AsyncQueue` takes the same.", Queue.__init__, ()),
    ("Queue.send", "`AsyncQueue.send` takes the same.", Queue.send, (SendKwargs,)),
    ("Queue.receive", "`AsyncQueue.receive` takes the same.", Queue.receive, ()),
    (
        "worker",
        'A decorator: `@worker("orders", group="billing")`; or `Worker(function, "orders", group="billing")`.',
        Worker.__init__,
        (Options, WorkerKwargs),
    ),
    ("Retry", "What `retries=` takes, besides a plain number.", Retry, (Retry,)),
)


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for name, about, function, declared in SIGNATURES:
        yield f"## {name}"
        yield f"{about}\n"
        yield "| Parameter | Type | Default | Description |"
        yield "|---|---|---|---|"
        descriptions = {key: text for kind in declared for key, text in descriptions_of(kind).items()}
        for parameter, kind_text, default in _parameters(function, declared):
            if name == "worker" and parameter == "handler":
                continue
            of_queue = FOR_QUEUES.get(parameter) if name.startswith("Queue") else None
            description = of_queue or descriptions.get(parameter) or BESIDE.get(parameter)
            if description is None:
                raise SystemExit(f"{name}: {parameter} has no docstring below it")
            yield f"| `{parameter}` | {_code(kind_text)} | {default} | {description.replace('|', _BAR)} |"
        yield ""


def descriptions_of(kind: type) -> dict[str, str]:
    """The docstring below each field of a class."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    descriptions: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                descriptions[name] = " ".join(text.split())
    return descriptions


def _parameters(function: Callable[..., Any], declared: tuple[type, ...]) -> Iterator[tuple[str, str, str]]:
    """Name, type and default of each parameter; `**options` is expanded."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from _expanded(declared)
        else:
            yield parameter.name, str(parameter.annotation), _default(parameter.default)


def _expanded(declared: tuple[type, ...]) -> Iterator[tuple[str, str, str]]:
    if SendKwargs in declared:
        for name, text in _annotations(SendKwargs).items():
            yield name, text, "now" if name == "timestamp_ms" else "none" if name == "headers" else "`None`"
        return
    fields = inspect.signature(Options).parameters
    for name, text in _annotations(OptionsKwargs).items():
        default = fields[name].default
        is_created = name == "settings"
        yield name, text, "none" if is_created else "no retries" if name == "retries" else _default(default)


def _annotations(kind: type) -> Mapping[str, str]:
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        each.target.id: ast.unparse(each.annotation)
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _default(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if callable(default):
        return "JSON and typed values" if getattr(default, "__name__", "") == "encode" else f"`{default!r}`"
    if isinstance(default, int) and not isinstance(default, bool) and default >= 10_000:
        return f"`{default:_}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    return f"`{default!r}`"


_BAR = "\\|"
"""Escaped for a table."""

ALIASES = {
    "Acks": '"all" | 1 | 0',
    "Compression": '"none" | "gzip" | "snappy" | "lz4" | "zstd"',
    "PartitionerLike": '"murmur2" | "round_robin" | function',
    "WhenFull": '"block" | "raise"',
    "Serializer": "function",
    "Decoder": "function",
    "HeadersLike": "mapping | pairs",
    "QueueFrom": '"earliest" | "latest"',
    "Mode": '"log" | "queue"',
    "From": '"earliest" | "latest" | datetime | int',
    "Protocol": '"classic" | "consumer"',
    "OnRebalance": "function",
    "Delivery": " | ".join(f'"{each}"' for each in options.DELIVERIES),
    "Backoff": '"exponential" | "linear" | "fixed"',
    "Order": '"key" | "none"',
    "Delay": "float | timedelta",
    "Callable[[Message], str]": "function",
    "ProcessedIds": "SqliteIds | RedisIds | own",
}
"""Types as readers understand them without the code."""


def _code(text: str) -> str:
    for name, plain in ALIASES.items():
        text = re.sub(rf"(?<![\w\"]){re.escape(name)}(?![\w\"])", plain, text)
    text = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", '"').replace(", ", " | "), text)
    return "`" + text.replace("|", "\\|") + "`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/client_reference.md is out of date: run make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
