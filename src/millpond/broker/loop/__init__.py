"""Cooperative scheduling on the event loop: long work in steps, fair turns, and what waits for an answer."""
