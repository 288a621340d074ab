"""Refuse unknown arguments with a helpful error that suggests the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from millpond.base.names import nearest
from millpond.client.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    """ConfigError for the first unknown name."""
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{whose} takes no argument {name!r}{nearest(name, names)}")


def named_arguments(whose: str, besides: Iterable[str] = ()) -> Callable[[F], F]:
    """Turn Python's TypeError for wrong arguments into a ConfigError. `besides`: names that `**options` takes."""

    def decorate(method: F) -> F:
        takes = signature(method).parameters.items()
        known = [name for name, each in takes if name != "self" and each.kind is not each.VAR_KEYWORD]
        known += besides

        @wraps(method)
        def call(*arguments: Any, **given: Any) -> Any:
            refuse_unknown(given, known, whose)
            try:
                return method(*arguments, **given)
            except TypeError as fault:
                if fault.__traceback__ is not None and fault.__traceback__.tb_next is None:
                    # The call itself failed: an argument is missing, or there are too many.
                    first = f"; its first argument is {known[0]!r}" if known else ""
                    raise ConfigError(f"wrong arguments for {whose}: {fault}{first}") from None
                raise

        return cast(F, call)

    return decorate
