"""Hostile clients generated from the schemas: requests with every field at its limits, and a node that must
survive.
"""
