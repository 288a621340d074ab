"""Replication: partitions and their roles, fetchers, and the ISR."""
