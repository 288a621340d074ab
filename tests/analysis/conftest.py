"""One broker in this process for all tests of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'millpond[arrow]'")

from millpond.analysis import arrow
from millpond.testing import Pond

Read = Callable[..., Any]


@pytest.fixture(scope="package")
def pond() -> Iterator[Pond]:
    with Pond(settings={"log.cleaner.backoff.ms": 50, "log.flush.offset.checkpoint.interval.ms": 100}) as pond:
        yield pond


@pytest.fixture
def read(pond: Pond) -> Read:
    """`millpond.arrow` of this broker."""
    return partial(arrow, bootstrap=pond.bootstrap)
