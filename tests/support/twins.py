"""A compiled module, if it was built, for tests that compare it with its pure Python twin."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

NOT_BUILT = "the compiled kernel was not built"


def compiled(name: str) -> Any:
    """The compiled module of that name; None if it was not built."""
    try:
        return importlib.import_module(f"millpond.wire.kernel.{name}")
    except ImportError:
        return None


def needs(room: Any) -> pytest.MarkDecorator:
    return pytest.mark.skipif(room is None, reason=NOT_BUILT)


def twins(plain: Any, fast: Any) -> list[Any]:
    """The twins that exist."""
    return [plain] if fast is None else [plain, fast]
