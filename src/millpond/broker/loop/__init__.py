"""Cooperative scheduling on the event loop: long work in steps, fair turns, and pending requests."""
