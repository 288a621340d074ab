"""The audit log: what clients did, and what they were refused."""
