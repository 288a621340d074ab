"""Four services read all orders, and a restarted one continues where it stopped."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.testing import Pond

SERVICES = ("billing", "shipping", "email", "stats")


@pytest.mark.smoke
def test_every_service_gets_every_order(millpond: Pond, example: Any) -> None:
    millpond.create_topic("fan-out.orders", 3)
    services = {name: example.start("service.py", name) for name in SERVICES}
    assert example.run("place_orders.py", "20") == ["placed 20 orders"]
    for name, service in services.items():
        lines = service.wait_for(lambda lines: len(lines) >= 20)
        assert len(lines) == len(set(lines)) == 20
        assert all(line.startswith(f"{name}: ") for line in lines)
    assert services["stats"].lines[-1] == f"stats: revenue is now {sum(range(100, 120)) / 100:.2f}"

    assert services["email"].stop() == 0
    example.run("place_orders.py", "5", "20")
    services["billing"].wait_for(lambda lines: len(lines) == 25)
    again = example.start("service.py", "email").wait_for(lambda lines: len(lines) >= 5)
    assert sorted(line.split()[-1] for line in again) == ["20", "21", "22", "23", "24"]
