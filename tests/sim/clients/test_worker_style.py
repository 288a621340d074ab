"""A style is a plain value; a worker that is told nothing special works calmly."""

from __future__ import annotations

from dataclasses import replace

from millpond.sim.clients.worker_style import WorkerStyle


def test_a_style_is_a_value() -> None:
    style = WorkerStyle()
    assert [style.is_careless, style.dawdles, style.is_orphan] == [False] * 3
    assert style == WorkerStyle()
    assert replace(style, dawdles=True) != style
