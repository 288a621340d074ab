"""What simulated clients did and observed, for the checkers."""
