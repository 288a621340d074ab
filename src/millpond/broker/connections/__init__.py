"""A node's listeners and its client connections."""
