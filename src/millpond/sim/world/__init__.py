"""A world of memory: clock, disk, network, workers and entropy from one seed, with faults to order."""
