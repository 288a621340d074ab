"""`millpond dlq`: dead letters."""
