"""One replicated partition on virtual time: leaders, followers and a controller, with faults by seed and checkers."""
