"""`millpond topic`: topics."""
