"""What tests and campaigns share: a real node in a process of its own, and a client without a client library."""
