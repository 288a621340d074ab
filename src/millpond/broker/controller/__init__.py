"""The metadata controller: decides changes and replicates them through the quorum."""
