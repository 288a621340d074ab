"""Shared by tests and campaigns: a real node in a separate process, and a client without a client library."""
