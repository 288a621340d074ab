"""`millpond cluster`: several nodes that act as one."""
