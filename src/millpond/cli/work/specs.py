"""Finds the worker that `billing:charge` names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from millpond.base.names import nearest
from millpond.cli.errors import Failed

if TYPE_CHECKING:
    from millpond.client.worker import Worker


def find_workers(specs: Iterable[str]) -> list[Worker]:
    """The named workers, each once; a module alone means all its workers."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    workers: dict[int, Worker] = {}
    for spec in specs:
        for worker in _workers_of(spec):
            workers[id(worker)] = worker
    return list(workers.values())


def _workers_of(spec: str) -> list[Worker]:
    from millpond.client.worker import Worker

    name, _, attribute = spec.partition(":")
    module = _module(name)
    there = {each: value for each, value in vars(module).items() if isinstance(value, Worker)}
    if attribute in there:
        return [there[attribute]]
    if not there:
        raise Failed(f"{name} has no worker: decorate a function with @worker(TOPIC, group=…).")
    if attribute and hasattr(module, attribute):
        raise Failed(f"{spec} is not a worker: decorate it with @worker(TOPIC, group=…).")
    if attribute:
        raise Failed(f"There is no {attribute} in {name}{nearest(attribute, there)}")
    return list(there.values())


def _module(name: str) -> ModuleType:
    from millpond.client.errors import ConfigError
    from millpond.client.worker import importing_for_workers

    try:
        with importing_for_workers():
            return import_module(name)
    except ConfigError as fault:
        raise Failed(f"{name}: {fault}.") from None
    except ModuleNotFoundError as fault:
        if fault.name is None or not (name == fault.name or name.startswith(f"{fault.name}.")):
            raise
        raise Failed(
            f"There is no module {name} here ({os.getcwd()}) or among the installed ones: name it as in an import, "
            "without .py."
        ) from None
