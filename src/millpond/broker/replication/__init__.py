"""Partitions with their roles: leaders, followers, and who is in sync."""
