"""A mark for tests that take too long for every change: `make chaos` runs all that have it."""

from __future__ import annotations

import os

import pytest

with_time = pytest.mark.with_time

ALL = os.environ.get("MILLPOND_ALL") == "1"
"""Whether they run now: whoever asks for them by name, or by their mark, says so."""
