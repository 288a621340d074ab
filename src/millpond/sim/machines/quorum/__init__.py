"""The metadata quorum alone, on virtual time: replicas over a toy log, with faults by seed and checkers."""
