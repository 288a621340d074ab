"""`millpond completion`: commands, options and the names that a cluster has, completed by the shell."""
