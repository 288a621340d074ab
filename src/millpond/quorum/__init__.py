"""The metadata quorum: a pull-based Raft in the manner of KRaft, pure, driven by events and the time."""
