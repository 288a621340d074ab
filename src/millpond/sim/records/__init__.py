"""Scenarios of one node: producers, readers and an administrator work under faults."""
