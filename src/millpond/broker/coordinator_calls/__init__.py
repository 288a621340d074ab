"""Requests to the coordinators of groups and transactions, and what these need of their node."""
