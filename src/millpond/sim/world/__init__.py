"""A simulated world: clock, disk, network, workers and entropy from one seed, with faults on request."""
