"""Replication of one partition, pure: what a leader counts as committed, and how a follower keeps up."""
