"""Fixtures shared by the client tests."""

from __future__ import annotations

import pytest

from support.raw import Raw


@pytest.fixture
def made(raw: Raw, topic: str) -> str:
    """A topic with two partitions."""
    raw.create_topic(topic, 2)
    return topic
