"""Runs in which producers, readers and an administrator work on one node while things go wrong."""
