"""Requests of this node to the others."""
