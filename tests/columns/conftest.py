"""Records as Arrow columns need pyarrow."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pip install 'millpond[arrow]'")
