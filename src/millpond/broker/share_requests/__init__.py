"""Requests of the members of share groups."""
