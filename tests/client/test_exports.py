"""What `import millpond` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millpond
import millpond.client


def test_the_package_has_all_of_the_client_s_names() -> None:
    tables = {"arrow", "write_arrow"}
    assert set(millpond.__all__) - {"__version__"} - tables == set(millpond.client.__all__)
    for name in millpond.client.__all__:
        assert getattr(millpond, name) is getattr(millpond.client, name)
    assert "Producer" in dir(millpond)


def test_what_the_docs_commit_by_is_there() -> None:
    """docs/client.md: `commit(offsets={TopicPartition("orders", 0): 7})`."""
    assert millpond.TopicPartition("orders", 0) == ("orders", 0)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        millpond.Nothing  # noqa: B018


def test_a_node_does_not_load_librdkafka() -> None:
    script = "import sys, millpond, millpond.node.serve; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
