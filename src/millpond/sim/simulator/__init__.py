"""The simulator: a seed and a list of actions, played on the real engine in the simulated world, to be looked at."""
