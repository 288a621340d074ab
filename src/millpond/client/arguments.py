"""Refuse unknown arguments with a helpful error that suggests the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from millpond.base.names import nearest
from millpond.client.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def refuse_unknown(names: Iterable[str], parameters: Iterable[str], whose: str) -> None:
    """ConfigError for the first unknown name."""
    accepted = list(parameters)
    for name in names:
        if name not in accepted:
            raise ConfigError(f"{whose} takes no argument {name!r}{nearest(name, accepted)}")


def named_arguments(whose: str, besides: Iterable[str] = ()) -> Callable[[F], F]:
    """Turn Python's TypeError for wrong arguments into a ConfigError. `besides`: names that `**options` takes."""

    def decorate(method: F) -> F:
        takes = signature(method).parameters.items()
        parameters = [name for name, each in takes if name != "self" and each.kind is not each.VAR_KEYWORD]
        parameters += besides

        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            refuse_unknown(keywords, parameters, whose)
            try:
                return method(*arguments, **keywords)
            except TypeError as fault:
                if fault.__traceback__ is not None and fault.__traceback__.tb_next is None:
                    # The call itself failed: an argument is missing, or there are too many.
                    first = f"; its first argument is {parameters[0]!r}" if parameters else ""
                    raise ConfigError(f"wrong arguments for {whose}: {fault}{first}") from None
                raise

        return cast(F, call)

    return decorate
