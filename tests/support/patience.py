"""A mark for tests that take too long to run on every change: `make chaos` runs all of them."""

from __future__ import annotations

import os

import pytest

with_time = pytest.mark.with_time

ALL = os.environ.get("MILLPOND_ALL") == "1"
"""Whether they run now: set it to select them by name or by their mark."""
