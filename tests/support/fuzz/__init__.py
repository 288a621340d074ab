"""Hostile clients made from the schemas: requests with every field at its limits, and a node that must bear them."""
