"""Client metrics subscriptions, under Kafka's names. They are stored for tools; clients are never
asked for metrics.
"""

from __future__ import annotations

from millpond.base.settings import Registry, Setting, between

_WITHOUT_EFFECT = "Without effect, because clients are not asked for metrics:"
NOTHING: tuple[str, ...] = ()

CLIENT_METRICS = Registry(
    "client metrics",
    (
        Setting("metrics", NOTHING, f"{_WITHOUT_EFFECT} the prefixes of the requested metrics."),
        Setting(
            "interval.ms",
            300_000,
            f"{_WITHOUT_EFFECT} how often clients send them.",
            between(100, 3_600_000),
            bits=32,
        ),
        Setting("match", NOTHING, f"{_WITHOUT_EFFECT} which clients are selected, as name=pattern."),
    ),
)
