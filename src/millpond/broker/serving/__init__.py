"""Dispatch of requests: the `Api` type, the table of APIs, and large requests in pieces."""
