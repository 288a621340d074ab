"""Deterministic simulation: clock, disk and network in memory, driven by a seed. Same seed, same run."""
