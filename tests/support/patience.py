"""A mark for tests that take too long for every change: `make chaos` runs them, by MILLPOND_ALL=1."""

from __future__ import annotations

import os

import pytest

with_time = pytest.mark.skipif(os.environ.get("MILLPOND_ALL") != "1", reason="takes a while: make chaos runs it")
