"""`millpond profile`: names for clusters."""
