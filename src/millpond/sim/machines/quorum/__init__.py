"""The metadata quorum alone, on virtual time: replicas over an in-memory log, with faults and checkers."""
