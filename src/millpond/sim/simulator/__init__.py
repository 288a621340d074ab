"""The simulator: a seed and a list of actions, run on the real engine in the simulated world."""
