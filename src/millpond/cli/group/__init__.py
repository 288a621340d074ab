"""`millpond group`: consumer groups."""
