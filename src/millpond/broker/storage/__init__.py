"""Storage upkeep: flushes, checkpoints and free disk space."""
