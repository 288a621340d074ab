"""Runs in which groups and transactions work on one node while things go wrong."""
