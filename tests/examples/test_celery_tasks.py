"""Celery tasks with a node as the broker."""

from __future__ import annotations

from typing import Any

import pytest


def test_tasks_are_executed(example: Any) -> None:
    pytest.importorskip("celery", reason="pip install celery")
    pytest.importorskip("kombu.transport.confluentkafka", reason="kombu has no transport for Kafka here")
    assert example.run("celery_app.py", "3", "4")[-1] == "2 tasks are sent"
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    worker = example.start_module("celery", "-A", "celery_app", "worker", "--pool", "solo", *quiet)
    # The output of a task is in the worker's log, on standard error.
    worker.wait_for(lambda _: any("the square of 4 is 16" in line for line in worker.output))
