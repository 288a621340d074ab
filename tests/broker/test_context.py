"""Contexts are bound by parameter name; a wrong name fails when the API is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.broker.apis import APIS
from millpond.broker.context import context_names
from millpond.broker.serving.api import FUNCTIONS

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, NodeContext


def wrong_name(nodes: NodeContext, call: object) -> None: ...


def wrong_type(data: NodeContext, call: object) -> None: ...


def wrong_order(node: NodeContext, call: object, data: DataContext) -> None: ...


def test_the_first_parameters_name_the_contexts() -> None:
    def handle(node: NodeContext, data: DataContext, call: object) -> None: ...

    assert context_names(handle) == ["node", "data"]


@pytest.mark.parametrize(
    ("function", "message"),
    [(wrong_name, "must be named 'node'"), (wrong_type, "must be named 'node'"), (wrong_order, "come before")],
)
def test_a_context_that_would_not_be_bound_is_an_error(function: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        context_names(function)  # type: ignore[arg-type]


def test_every_api_names_its_contexts_correctly() -> None:
    for api in APIS:
        for name in FUNCTIONS:
            if (function := getattr(api, name)) is not None:
                context_names(function)
