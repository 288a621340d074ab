"""Requests to the coordinators of groups and transactions, and what they need from their node."""
