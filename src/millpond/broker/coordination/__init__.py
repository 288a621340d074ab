"""Coordinators of groups and transactions on the partitions that they live in."""
